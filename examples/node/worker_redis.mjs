// A worker over the Redis protocol, with ioredis: the BridgeMQ v1 schema, on Tidegate's own port or on your Redis.
//
//     REDIS_URL=redis://127.0.0.1:6380 node worker_redis.mjs [--drain]
//
// For programs that speak Redis anyway. It sees the jobs of every producer, Tidegate's included. Compared with a
// worker over HTTP it has to do more itself, and nobody enforces a job's timeout or stops it when it is cancelled.
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { Redis } from "ioredis";

const workerId = process.env.WORKER_ID ?? `node-redis-${process.pid}`;
const lockSeconds = 30;
const drain = process.argv.includes("--drain");
const client = new Redis(process.env.REDIS_URL ?? "redis://127.0.0.1:6380");
const script = (name) => readFileSync(new URL(`../redis/${name}.lua`, import.meta.url), "utf8");
client.defineCommand("claimJob", { numberOfKeys: 3, lua: script("claim") });
client.defineCommand("releaseJob", { numberOfKeys: 3, lua: script("release") });
const key = (...parts) => ["bridge", ...parts].join(":");

// 1. What to do, by job type.
const handlers = {
  async greet({ name }) {
    if (!name) throw new TypeError("a greeting needs a name");
    return { greeting: `Hello, ${name}!` };
  },
};

// 2. Registration. A worker whose heartbeat is missing counts as gone.
async function register() {
  const info = {
    serverId: workerId, stack: "node", region: "", capabilities: [],
    lastSeen: Date.now(), pid: process.pid, hostname: hostname(),
  };
  await client.set(key("workers", workerId), JSON.stringify(info));
  await client.sadd(key("workers", "active"), workerId);
  await beat();
}
const beat = () => client.set(key("workers", "heartbeat", workerId), Date.now(), "EX", lockSeconds);

// 3. One job: its result is written before its status, so that whoever sees "completed" finds the result. The lock
//    is kept while the handler runs: a lock that ends gives the job to somebody else.
async function run(job) {
  const id = job.jobId;
  const started = Date.now();
  const keeping = setInterval(() => {
    client.expire(key("jobs", "lock", id), lockSeconds).then(beat).catch(console.error);
  }, (lockSeconds * 1000) / 3);
  let result;
  try {
    result = { success: true, data: (await handlers[job.type](job.payload ?? {})) ?? null };
  } catch (error) {
    result = { success: false, error: { name: error.name, message: error.message } };
  } finally {
    clearInterval(keeping);
  }
  Object.assign(result, { completedAt: Date.now(), processingTime: Date.now() - started });
  await client.set(key("jobs", "result", id), JSON.stringify(result), "EX", 24 * 60 * 60);
  const attempts = job.attempts ?? 0;
  let status = "completed";
  if (!result.success && attempts < (job.retry?.attempts ?? 3)) {
    // v1 has no backoff: it is in line again at once.
    status = "waiting";
    await client.set(key("jobs", "data", id), JSON.stringify({ ...job, attempts: attempts + 1 }));
  } else if (!result.success) {
    status = "dead";
  }
  await client.set(key("jobs", "status", id), status);
  if (status === "waiting") await client.rpush(key("jobs", "waiting"), id);
  if (status === "dead") await client.lpush(key("jobs", "deadletter"), id);
  const counter = key("ratelimit", "concurrent", job.type);
  await client.releaseJob(key("jobs", "lock", id), key("jobs", "active"), counter, workerId, id);
  console.log(id, status);
}

// 4. The loop.
let stopping = false;
for (const name of ["SIGINT", "SIGTERM"]) process.on(name, () => (stopping = true));
await register();
while (!stopping) {
  const text = await client.claimJob(
    key("jobs", "waiting"), key("jobs", "active"), key("queues", "paused"),
    workerId, '["node"]', "[]", "[]", lockSeconds, JSON.stringify(Object.keys(handlers)),
    key("jobs", "data", ""), key("jobs", "lock", ""), key("ratelimit", "concurrent", ""),
  );
  if (text) {
    const job = JSON.parse(text);
    await client.set(key("jobs", "status", job.jobId), "active");
    await run(job);
  } else if (drain) {
    break;
  } else {
    await beat();
    await new Promise((wake) => setTimeout(wake, 200));
  }
}
await client.del(key("workers", workerId), key("workers", "heartbeat", workerId));
await client.srem(key("workers", "active"), workerId);
await client.quit();
