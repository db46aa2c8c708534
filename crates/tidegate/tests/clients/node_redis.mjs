// node-redis against the port given as argument.
import assert from 'node:assert/strict';
import { createClient } from 'redis';

for (const RESP of [3, 2]) {
  const options = { url: `redis://127.0.0.1:${process.argv[2]}`, RESP, socket: { reconnectStrategy: false } };
  const client = await createClient(options).on('error', (error) => { throw error; }).connect();
  await client.flushAll();
  assert.equal(await client.ping(), 'PONG');
  assert.equal(await client.set('a', '1', { expiration: { type: 'EX', value: 60 } }), 'OK');
  assert.equal(await client.incr('a'), 2);
  assert.equal(await client.get('absent'), null);
  await client.hSet('h', { x: '1', y: '2' });
  assert.deepEqual({ ...(await client.hGetAll('h')) }, { x: '1', y: '2' });
  await client.zAdd('z', [{ score: 1.5, value: 'm' }, { score: 2, value: 'n' }]);
  assert.equal(await client.zScore('z', 'm'), 1.5);
  assert.deepEqual(await client.zRangeWithScores('z', 0, -1), [{ value: 'm', score: 1.5 }, { value: 'n', score: 2 }]);
  await client.sAdd('s', ['p', 'q']);
  assert.deepEqual([...(await client.sMembers('s'))].sort(), ['p', 'q']);
  const replies = await client.multi().set('t', '1').incr('t').get('t').exec();
  assert.deepEqual(replies, ['OK', 2, '2']);
  await assert.rejects(client.lPush('a', 'x'), /WRONGTYPE/);
  assert.equal(await client.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", { keys: ['c'], arguments: ['5'] }), 5);
  await client.xAdd('stream', '*', { f: 'v' });
  assert.equal((await client.xRange('stream', '-', '+'))[0].message.f, 'v');
  for (let n = 0; n < 100; n += 1) await client.set(`scan:${n}`, n);
  const seen = new Set();
  for await (const keys of client.scanIterator({ MATCH: 'scan:*' })) for (const key of [keys].flat()) seen.add(key);
  assert.equal(seen.size, 100);
  const other = await client.duplicate().connect();
  const heard = new Promise((resolve) => { other.subscribe('news', (text) => resolve(text)).then(() => client.publish('news', 'hello')); });
  assert.equal(await heard, 'hello');
  await other.unsubscribe('news');
  await other.close();
  const waiter = await client.duplicate().connect();
  const popped = waiter.blPop('waited', 10);
  while (!/blocked_clients:[1-9]/.test(await client.info('clients'))) await new Promise((resolve) => setTimeout(resolve, 5));
  await client.rPush('waited', 'here');
  assert.equal((await popped).element, 'here');
  await waiter.close();
  await client.close();
}
console.log('done');
