// BullMQ for Node under the same loads: `node bullmq.mjs PORT SCENARIO COUNT CONCURRENCY`.
import { Queue, Worker } from 'bullmq';
import IORedis from 'ioredis';

const [port, scenario, count, concurrency] = process.argv.slice(2);
const total = Number(count);
const connection = new IORedis(Number(port), '127.0.0.1', { maxRetriesPerRequest: null });
const queue = new Queue('bench', { connection });
const payload = (i) => ({ i, p: 'x'.repeat(85) });
let started, cpu;
const begin = () => { started = process.hrtime.bigint(); cpu = process.cpuUsage(); };
const report = (more = {}) => {
  const wall = Number(process.hrtime.bigint() - started) / 1e9;
  const used = process.cpuUsage(cpu);
  console.log(JSON.stringify({ count: total, wall, cpu: (used.user + used.system) / 1e6, ...more }));
};

const bulk = async () => {
  for (let i = 0; i < total; i += 1000) {
    const jobs = [];
    for (let n = i; n < Math.min(i + 1000, total); n++) jobs.push({ name: 'noop', data: payload(n) });
    await queue.addBulk(jobs);
  }
};

// The driver resets its own figures at this line and lets go.
const ready = () => new Promise((go) => { process.stdin.once('data', go); console.log('ready'); });

if (scenario === 'single') {
  await queue.waitUntilReady();
  await ready();
  begin();
  let next = 0;
  await Promise.all(Array.from({ length: 64 }, async () => {
    while (next < total) await queue.add('noop', payload(next++));
  }));
  report();
} else if (scenario === 'bulk' || scenario === 'fill') {
  await queue.waitUntilReady();
  await ready();
  begin();
  await bulk();
  report();
} else if (scenario === 'process') {
  await bulk();
  await ready();
  begin();
  let done = 0;
  await new Promise((end) => {
    const worker = new Worker('bench', async () => {}, {
      connection: connection.duplicate(), concurrency: Number(concurrency),
    });
    worker.on('completed', () => { if (++done === total) end(); });
  });
  report();
} else if (scenario === 'latency') {
  const times = [];
  const at = new Map();
  let end;
  const all = new Promise((resolve) => { end = resolve; });
  const worker = new Worker('bench', async (job) => {
    times.push(Number(process.hrtime.bigint() - at.get(job.data.i)) / 1e6);
    if (times.length === total) end();
  }, { connection: connection.duplicate(), concurrency: 10 });
  await worker.waitUntilReady();
  await ready();
  begin();
  for (let i = 0; i < total; i++) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    at.set(i, process.hrtime.bigint());
    queue.add('noop', payload(i));
  }
  await all;
  times.sort((a, b) => a - b);
  report({ p50: times[Math.floor(total * 0.5)], p99: times[Math.floor(total * 0.99)] });
}
process.exit(0);
