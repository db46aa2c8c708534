// ioredis against the port given as argument: opens with HELLO 3, as it does by default.
import assert from 'node:assert/strict';
import Redis from 'ioredis';

const redis = new Redis({ port: Number(process.argv[2]), maxRetriesPerRequest: 1, retryStrategy: null });
const plain = new Redis({ port: Number(process.argv[2]), protocol: 2, maxRetriesPerRequest: 1, retryStrategy: null });

for (const client of [redis, plain]) {
  await client.flushall();
  assert.equal(await client.ping(), 'PONG');
  assert.equal(await client.set('a', '1', 'PX', 60000), 'OK');
  assert.equal(await client.incr('a'), 2);
  assert.ok((await client.pttl('a')) > 0);
  assert.equal(await client.get('absent'), null);
  const bytes = Buffer.from([0, 13, 10, 255]);
  await client.set('bytes', bytes);
  assert.deepEqual(await client.getBuffer('bytes'), bytes);
  await client.hset('h', { x: '1', y: '2' });
  assert.deepEqual({ ...(await client.hgetall('h')) }, { x: '1', y: '2' });
  await client.zadd('z', 1.5, 'm', 2, 'n');
  assert.equal(Number(await client.zscore('z', 'm')), 1.5);
  assert.equal(await client.zrank('z', 'n'), 1);
  await client.sadd('s', 'p', 'q');
  assert.deepEqual([...(await client.smembers('s'))].sort(), ['p', 'q']);
  await client.rpush('l', '1', '2', '3');
  assert.deepEqual(await client.lrange('l', 0, -1), ['1', '2', '3']);

  // Pipelines and transactions.
  const piped = await client.pipeline().set('p', '1').incr('p').get('p').lpop('p').exec();
  assert.deepEqual(piped.slice(0, 3), [[null, 'OK'], [null, 2], [null, '2']]);
  assert.match(piped[3][0].message, /^WRONGTYPE/);
  const done = await client.multi().set('t', '1').incr('t').exec();
  assert.deepEqual(done, [[null, 'OK'], [null, 2]]);

  // Scripts: EVALSHA with the source as a fall back.
  client.defineCommand('twice', { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1] * 2)" });
  assert.equal(await client.twice('counter', 4), 8);
  await client.script('FLUSH');
  assert.equal(await client.twice('counter', 1), 10);
  await assert.rejects(client.eval("return redis.error_reply('MY own error')", 0), /MY own error/);

  // Scans give everything.
  for (let n = 0; n < 300; n += 1) await client.set(`scan:${n}`, n);
  const seen = new Set();
  for await (const keys of client.scanStream({ match: 'scan:*', count: 50 })) keys.forEach((key) => seen.add(key));
  assert.equal(seen.size, 300);

  // Streams, blocking pops, messages.
  const id = await client.xadd('stream', '*', 'f', 'v');
  assert.equal(await client.xlen('stream'), 1);
  assert.deepEqual(await client.xrange('stream', '-', '+'), [[id, ['f', 'v']]]);
  const other = client.duplicate();
  const popped = other.blpop('waited', 10);
  await new Promise((resolve) => setImmediate(resolve));
  while (!/blocked_clients:[1-9]/.test(await client.info('clients'))) await new Promise((resolve) => setTimeout(resolve, 5));
  await client.rpush('waited', 'here');
  assert.deepEqual(await popped, ['waited', 'here']);
  assert.equal(await other.blpop('never', 0.05), null);
  const message = new Promise((resolve) => other.once('message', (channel, text) => resolve([channel, text])));
  const matched = new Promise((resolve) => other.once('pmessage', (pattern, channel, text) => resolve([pattern, channel, text])));
  await other.subscribe('news');
  await other.psubscribe('n*');
  assert.equal(await client.publish('news', 'hello'), 2);
  assert.deepEqual(await message, ['news', 'hello']);
  assert.deepEqual(await matched, ['n*', 'news', 'hello']);
  await other.unsubscribe('news');
  await other.punsubscribe('n*');
  assert.equal(await other.quit(), 'OK');
}
await redis.quit();
await plain.quit();
console.log('done');
