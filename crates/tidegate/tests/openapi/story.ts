// A client in TypeScript, made from openapi.json by openapi-typescript, plays a story with the real program:
// `node story.js URL ADMIN_TOKEN`. It ends with the line "done".

import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

type Job = components["schemas"]["NewJob"];

declare const process: { argv: string[] };

const [url = "", token = ""] = process.argv.slice(2);
const operator = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
const anybody = createClient<paths>({ baseUrl: url });

/** The data of an answer that must be a success. */
function good<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.status}: ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

/** The code of an answer that must be an error. */
function code(answer: { error?: components["schemas"]["ErrorBody"]; response: Response }): string {
  if (answer.error === undefined) throw new Error(`${answer.response.status} is no error`);
  return answer.error.error.code;
}

function equal<T>(got: T, expected: T, what: string): void {
  if (JSON.stringify(got) !== JSON.stringify(expected)) {
    throw new Error(`${what}: ${JSON.stringify(got)} instead of ${JSON.stringify(expected)}`);
  }
}

async function room(): Promise<void> {
  const queue = good(
    await operator.POST("/api/v1/admin/queues", {
      body: { id: "sale", max_active: 1, admission: { count: 100, per_seconds: 1 } },
    }),
  );
  equal([queue.id, queue.status, queue.max_active], ["sale", "active", 1], "the queue");
  const created: string = queue.created_at;
  equal(new Date(created).toISOString(), created, "a time in RFC 3339");
  const again = await operator.POST("/api/v1/admin/queues", { body: { id: "sale" } });
  equal(code(again), "QUEUE_EXISTS", "a name that is taken");

  // Everything in the body may be left out.
  const params = { path: { queue_id: "sale" } };
  const held = good(await anybody.POST("/api/v1/queues/{queue_id}/enqueue", { params, body: {} }));
  if (!held.token) throw new Error("a new position has a token");
  const headers = { Authorization: `Bearer ${held.token}` };

  // It polls as often as the server says until it is admitted.
  let position = held;
  while (position.status === "waiting") {
    await new Promise((wake) => setTimeout(wake, Math.min(position.next_poll_ms, 200)));
    const answer = await anybody.GET("/api/v1/queues/{queue_id}/status", { params, headers });
    if (answer.response.status === 429) continue;
    position = good(answer);
  }
  equal(position.status, "admitted", "the position");
  const started = await anybody.POST("/api/v1/queues/{queue_id}/start-session", { params, headers });
  const session = good(started);
  if (!("session_id" in session)) throw new Error("it was admitted");
  equal(session.status, "active", "the session");
  if (!session.session_token) throw new Error("a session that starts has a pass");

  const sessions = good(await operator.GET("/api/v1/admin/queues/{queue_id}/sessions", { params }));
  equal(sessions.items.map((one) => one.session_id), [session.session_id], "the sessions");
  equal(sessions.next_cursor, null, "the end of the list");
  const pass = { Authorization: `Bearer ${session.session_token}` };
  const ended = good(
    await anybody.POST("/api/v1/sessions/{session_id}/complete", {
      params: { path: { session_id: session.session_id } },
      headers: pass,
    }),
  );
  equal([ended.status, ended.reason], ["terminated", "completed"], "the end");
  const nobody = await anybody.GET("/api/v1/queues/{queue_id}/now", { params: { path: { queue_id: "none" } } });
  equal(code(nobody), "QUEUE_NOT_FOUND", "a queue that is not there");
  equal(code(await anybody.GET("/api/v1/admin/queues")), "UNAUTHORIZED", "a call without a token");
}

async function jobs(): Promise<void> {
  const job: Job = { type: "mail", payload: { to: "ann@example.org" } };
  const header = { "Idempotency-Key": "order-7" };
  const first = good(await operator.POST("/api/v1/jobs", { body: job, params: { header } }));
  const second = good(await operator.POST("/api/v1/jobs", { body: job, params: { header } }));
  equal([second.id, second.new], [first.id, false], "the same key");
  const many = good(
    await operator.POST("/api/v1/jobs/bulk", {
      body: { jobs: [{ type: "mail" }, { type: "mail", retry: { attempts: 0 } }, { type: "" }] },
    }),
  );
  equal(many.items.map((one) => [one.index, one.new]), [[0, true], [1, true], [2, false]], "many at once");

  // Page by page, two at a time.
  const seen: string[] = [];
  let cursor: string | undefined;
  do {
    const query = cursor === undefined ? { limit: 2 } : { limit: 2, cursor };
    const page = good(await operator.GET("/api/v1/jobs", { params: { query } }));
    seen.push(...page.items.map((one) => one.id));
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
  equal(new Set(seen).size, 3, "the jobs of all pages");

  const claim = { worker_id: "node-1", types: ["mail"], limit: 10, wait_ms: 1000 };
  const claimed = good(await operator.POST("/api/v1/jobs/claim", { body: claim }));
  equal(claimed.items.length, 3, "the leases");
  const doomed = many.items[1]?.id ?? "";
  for (const { job, worker_id, token } of claimed.items) {
    const params = { path: { id: job.id } };
    if (job.id === doomed) {
      const error = { name: "Smtp", message: "no such mailbox" };
      const failed = await operator.POST("/api/v1/jobs/{id}/fail", { params, body: { worker_id, token, error } });
      equal(good(failed).outcome, "dead", "its last attempt");
      continue;
    }
    const body = { worker_id, token, result: { sent: true }, took_ms: 12 };
    equal(good(await operator.POST("/api/v1/jobs/{id}/complete", { params, body })).outcome, "completed", "an end");
    const twice = await operator.POST("/api/v1/jobs/{id}/complete", { params, body });
    equal(code(twice), "LEASE_LOST", "a lease that is over");
  }
  const dead = good(await operator.GET("/api/v1/jobs/dead"));
  equal(dead.items.map((one) => [one.id, one.result?.error?.message]), [[doomed, "no such mailbox"]], "dead letters");
  const replayed = await operator.POST("/api/v1/jobs/{id}/replay", { params: { path: { id: doomed } } });
  equal(good(replayed).outcome, "replayed", "the dead letter");
  const job7 = good(await operator.GET("/api/v1/jobs/{id}", { params: { path: { id: doomed } } }));
  equal(job7.status, "waiting", "its state");

  const none = await operator.GET("/api/v1/jobs/{id}", { params: { path: { id: "none" } } });
  equal(code(none), "JOB_NOT_FOUND", "a job that is not there");
  // The compiler lets a field too many pass in a variable. The server does not, and names it.
  const body = { type: "mail", prioritty: 7 };
  const misspelt = await operator.POST("/api/v1/jobs", { body });
  equal(misspelt.error?.error.details["field"], "prioritty", "the field at fault");
}

await room();
await jobs();
console.log("done");
