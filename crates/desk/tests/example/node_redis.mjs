// The schema's Example Usage, block by block, with node-redis. Reads the name of a block per line and
// answers with one line of JSON. Arguments: port, folder with node_modules.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const { createClient } = createRequire(`${process.argv[3]}/`)('redis');
const client = await createClient({ url: `redis://127.0.0.1:${process.argv[2]}` }).connect();

const blocks = {
  // Create user session on login
  async login() {
    await client.hSet('ha:user:123', {
      device_id: 'iPhone_12_ABC123',
      login_time: Date.now().toString(),
      last_seen: Date.now().toString(),
      active: 'true',
      ip_address: '192.168.1.100',
    });
    await client.expire('ha:user:123', 604800); // 7 days
  },
  // Validate user on API request
  async validate() {
    const user = await client.hGetAll('ha:user:123');
    if (!user.device_id) return 'Session expired';
    if (user.active !== 'true') return 'User disabled';
    return 'ok';
  },
  // Update last seen and refresh TTL
  async touch() {
    await client.multi()
      .hSet('ha:user:123', 'last_seen', Date.now().toString())
      .expire('ha:user:123', 604800)
      .exec();
  },
  // Disable user instantly, and its opposite
  async disable() { await client.hSet('ha:user:123', 'active', 'false'); },
  async enable() { await client.hSet('ha:user:123', 'active', 'true'); },
  // Logout user (delete session)
  async logout() { await client.del('ha:user:123'); },
  // Increment request counter
  async count() {
    await client.incrBy('ha:requests:total', 1);
    await client.incrBy('ha:requests:endpoint:GET /api/forum/questions', 1);
  },
  // What the schema says is published
  async read() {
    const keys = ['ha:requests:total', 'ha:requests:accepted', 'ha:errors:total', 'ha:connections:http:current',
      'ha:requests:endpoint:GET /api/forum/questions'];
    return Promise.all(keys.map((key) => client.get(key)));
  },
  // A hit in each of the two limit sets
  async hit() {
    const now = Date.now();
    await client.zAdd('ha:rate_limit:192.168.1.100', { score: now, value: now.toString() });
    await client.zAdd('ha:sliding_limit:192.168.1.100', { score: now, value: `${now}-${Math.random()}` });
    return [await client.zCard('ha:rate_limit:192.168.1.100'), await client.zCard('ha:sliding_limit:192.168.1.100')];
  },
};

for await (const block of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify((await blocks[block]()) ?? null));
}
client.destroy();
