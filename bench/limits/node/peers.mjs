// One contender for so many seconds, as src/main.rs: node peers.mjs CONTENDER SECONDS [URL]
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import Redis from 'ioredis';
import { Histogram, Counter } from 'prom-client';
import { RateLimiterMemory, RateLimiterRedis } from 'rate-limiter-flexible';

const [contender, seconds, url] = process.argv.slice(2);
const IDENTITIES = 10_000, CONCURRENCY = 50;
const options = { points: 1_000_000, duration: 60 };

async function ready() {
  console.log('ready');
  await once(createInterface({ input: process.stdin }), 'line');
  return { at: process.hrtime.bigint(), cpu: process.cpuUsage() };
}

function report(start, checks, bad) {
  const used = process.cpuUsage(start.cpu);
  console.log(JSON.stringify({
    checks, bad, seconds: Number(process.hrtime.bigint() - start.at) / 1e9, cpu: (used.user + used.system) / 1e6,
  }));
}

async function drive(call) {
  for (let n = 0; n < 200; n++) await call(n);
  const start = await ready();
  let checks = 0, bad = 0, stop = false;
  setTimeout(() => { stop = true; }, seconds * 1000);
  await Promise.all(Array.from({ length: CONCURRENCY }, async () => {
    while (!stop) {
      try { await call(Math.floor(Math.random() * IDENTITIES)); } catch { bad++; }
      // A limiter in memory would keep the thread from the clock.
      if (++checks % 64 === 0) await new Promise(setImmediate);
    }
  }));
  report(start, checks, bad);
}

if (contender === 'rlf') {
  const client = new Redis(url);
  const limiter = new RateLimiterRedis({ storeClient: client, ...options });
  await drive((n) => limiter.consume(String(n)));
  client.disconnect();
} else if (contender === 'rlf-memory') {
  const limiter = new RateLimiterMemory(options);
  await drive((n) => limiter.consume(String(n)));
} else {
  // One labelled observation and one count per request, as express-prom-bundle does.
  const labels = ['route', 'method', 'status'];
  const times = new Histogram({ name: 'times', help: 'x', labelNames: labels });
  const count = new Counter({ name: 'count', help: 'x', labelNames: labels });
  const routes = ['/a/:id', '/b', '/c/:id/d', '/e'];
  const call = (n) => {
    const label = { route: routes[n % 4], method: 'GET', status: 200 };
    times.observe(label, (1.5 + (n % 64) * 0.04) / 1000);
    if (contender === 'prom-both') count.inc(label);
  };
  for (let n = 0; n < 200_000; n++) call(n);
  const start = await ready();
  let checks = 0;
  while (process.hrtime.bigint() - start.at < BigInt(Math.round(seconds * 1e9))) {
    for (let n = 0; n < 4096; n++) call(n);
    checks += 4096;
  }
  report(start, checks, 0);
}
// Standard input stays open: it would keep the process alive.
process.exit(0);
