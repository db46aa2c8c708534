// A worker over HTTP, without packages: Node's own fetch is all it needs.
//
//     TIDEGATE_URL=http://127.0.0.1:7070 TIDEGATE_TOKEN=… node worker_http.mjs [--drain]
//
// It claims jobs of the types in `handlers`, several at once, runs them, and says how they ended. A job belongs to
// the worker that claimed it until its lease ends, so the lease is renewed while a handler runs. What the server
// answers to that also says whether the job was cancelled meanwhile.

const url = process.env.TIDEGATE_URL ?? "http://127.0.0.1:7070";
const workerId = process.env.WORKER_ID ?? `node-${process.pid}`;
const leaseMs = 30_000;
const drain = process.argv.includes("--drain");
const stop = new AbortController();

// 1. What to do, by job type: a function of the payload. What it returns is the job's result; what it throws is
//    its error, and the job's retry policy decides what comes next. `signal` tells of a cancellation.
const handlers = {
  async greet({ name }, signal) {
    if (!name) throw new TypeError("a greeting needs a name");
    signal.throwIfAborted();
    return { greeting: `Hello, ${name}!` };
  },
};

// 2. One call. An error has a stable code, which programs go by, and a message for people.
async function call(method, path, body, signal) {
  const answer = await fetch(`${url}/api/v1${path}`, {
    method,
    signal,
    headers: { authorization: `Bearer ${process.env.TIDEGATE_TOKEN}`, "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });
  const data = await answer.json();
  if (!answer.ok) {
    throw Object.assign(new Error(`${data.error.code}: ${data.error.message}`), { code: data.error.code });
  }
  return data;
}

// 3. One job under its lease: `worker_id` and `token` name the lease in every call.
async function run({ job, worker_id, token }) {
  const path = `/jobs/${job.id}`;
  const cancelled = new AbortController();
  const renewing = setInterval(async () => {
    try {
      const lease = await call("POST", `${path}/renew`, { worker_id, token });
      if (lease.cancelled) cancelled.abort(new Error(lease.reason ?? "cancelled"));
    } catch (error) {
      console.error(`${job.id} not renewed: ${error.message}`);
    }
  }, leaseMs / 3);
  const started = Date.now();
  let verb = "complete";
  let ended;
  try {
    ended = { result: (await handlers[job.type](job.payload, cancelled.signal)) ?? null };
  } catch (error) {
    verb = "fail";
    ended = { error: { name: error.name, message: error.message, stack: error.stack } };
  } finally {
    clearInterval(renewing);
  }
  try {
    const body = { worker_id, token, took_ms: Date.now() - started, ...ended };
    console.log(job.id, (await call("POST", `${path}/${verb}`, body)).outcome);
  } catch (error) {
    // LEASE_LOST: it took too long, and somebody else has the job now. Nothing to do about it here.
    console.error(`${job.id} does not count: ${error.message}`);
  }
}

// 4. The loop. A claim waits until there is a job, so an idle worker makes few calls.
for (const name of ["SIGINT", "SIGTERM"]) process.on(name, () => stop.abort());
while (!stop.signal.aborted) {
  let claimed;
  try {
    claimed = await call("POST", "/jobs/claim", {
      worker_id: workerId, stack: "node", types: Object.keys(handlers),
      limit: 10, wait_ms: drain ? 0 : 20_000, lease_ms: leaseMs,
    }, stop.signal);
  } catch (error) {
    if (stop.signal.aborted) break;
    if (["UNAUTHORIZED", "FORBIDDEN"].includes(error.code)) throw error;
    console.error(`no answer (${error.message}); trying again`);
    await new Promise((wake) => setTimeout(wake, 2_000));
    continue;
  }
  await Promise.all(claimed.items.map(run));
  if (drain && claimed.items.length === 0 && !claimed.more) break;
}
// So that the list of workers is true at once.
await call("DELETE", `/jobs/workers/${workerId}`);
