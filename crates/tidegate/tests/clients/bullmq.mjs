// BullMQ's queue, worker, events, delays, retries and flows against the port given as argument.
import assert from 'node:assert/strict';
import { FlowProducer, Queue, QueueEvents, Worker } from 'bullmq';

const connection = { host: '127.0.0.1', port: Number(process.argv[2]) };
const queue = new Queue('mail', { connection });
const events = new QueueEvents('mail', { connection });
await events.waitUntilReady();

const attempts = new Map();
const order = [];
const worker = new Worker('mail', async (job) => {
  attempts.set(job.id, (attempts.get(job.id) ?? 0) + 1);
  if (job.name === 'flaky' && attempts.get(job.id) < 3) throw new Error('not yet');
  order.push(job.data.n);
  await job.updateProgress(50);
  return job.data.n * 2;
}, { connection, concurrency: 1 });
worker.on('error', (error) => { console.error(error); process.exit(1); });
await worker.waitUntilReady();

const first = await queue.add('plain', { n: 21 });
assert.equal(await first.waitUntilFinished(events, 20000), 42);

const delayed = await queue.add('delayed', { n: 1 }, { delay: 200 });
assert.equal(await delayed.waitUntilFinished(events, 20000), 2);

const flaky = await queue.add('flaky', { n: 5 }, { attempts: 3, backoff: { type: 'fixed', delay: 20 } });
assert.equal(await flaky.waitUntilFinished(events, 20000), 10);
assert.equal(attempts.get(flaky.id), 3);

await worker.pause();
const bulk = await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: 'bulk', data: { n }, opts: { priority: 20 - n } })));
order.length = 0;
worker.resume();
await Promise.all(bulk.map((job) => job.waitUntilFinished(events, 20000)));
assert.deepEqual(order, Array.from({ length: 20 }, (_, n) => 19 - n), 'by priority');

const flow = new FlowProducer({ connection });
const tree = await flow.add({ name: 'parent', queueName: 'mail', data: { n: 7 }, children: [
  { name: 'child', queueName: 'mail', data: { n: 8 } },
  { name: 'child', queueName: 'mail', data: { n: 9 } },
] });
assert.equal(await tree.job.waitUntilFinished(events, 20000), 14);
assert.deepEqual(Object.values(await tree.job.getChildrenValues()).sort(), [16, 18]);

const counts = await queue.getJobCounts('completed', 'failed', 'waiting', 'active', 'delayed');
assert.equal(counts.completed, 26);
assert.equal(counts.failed + counts.waiting + counts.active + counts.delayed, 0);
await queue.clean(0, 1000, 'completed');
await queue.obliterate({ force: true });

await Promise.all([worker.close(), events.close(), flow.close()]);
await queue.close();
console.log('done');
