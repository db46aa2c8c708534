"""A producer and two kinds of worker that know nothing but the documented keys, with plain redis-py.

The commands and their order are those of BridgeMQ v1; see the page on jobs.

  bridge.py URL produce COUNT JOB      dispatches so many jobs (JOB is JSON: type, payload, priority,
                                       target, schedule, retry), prints their ids
  bridge.py URL class NAME KINDS       works as v1's class does, until its input closes
  bridge.py URL script NAME STACK REGION CAPABILITIES
                                       works by the claim and release scripts, until its input closes
  bridge.py URL check IDS              says whether each job ended as v1 readers expect
Workers print `id kind` for every job they ran. The kind `fail` fails.
"""
import json
import os
import sys
import threading
import time
import uuid

import redis

NS = os.environ.get("NAMESPACE", "bridge")
LOCK_TTL = 30


def key(*parts):
    return ":".join((NS,) + parts)


def now():
    return int(time.time() * 1000)


def compact(document):
    return json.dumps(document, separators=(",", ":"))


def dispatch(client, given):
    schedule = given.get("schedule") or {}
    job = {
        "jobId": str(uuid.uuid4()),
        "type": given["type"],
        "payload": given.get("payload") or {},
        "schedule": schedule,
        "retry": given.get("retry") or {"attempts": 3, "backoff": {"type": "exponential", "delay": 2000}},
        "priority": given.get("priority") or 5,
        "dependsOn": given.get("dependsOn") or [],
        "target": given.get("target") or {},
        "metadata": given.get("metadata") or {},
        "createdAt": now(),
        "attempts": 0,
    }
    name = job["jobId"]
    client.set(key("jobs", "data", name), compact(job))
    if schedule.get("delay") or schedule.get("runAt"):
        due = schedule.get("runAt") or now() + schedule["delay"]
        client.zadd(key("jobs", "delayed"), {name: due})
        client.set(key("jobs", "status", name), "delayed")
        return name
    push = client.lpush if job["priority"] >= 7 else client.rpush
    push(key("jobs", "waiting"), name)
    client.set(key("jobs", "status", name), "waiting")
    return name


UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class Worker:
    """What both kinds share: registration, heartbeat, and how a job ends."""

    def __init__(self, client, name, stack="python", region="", capabilities=()):
        self.client, self.name = client, name
        self.stack, self.region, self.capabilities = stack, region, list(capabilities)
        self.stop = threading.Event()

    def register(self):
        info = {
            "serverId": self.name, "stack": self.stack, "region": self.region,
            "capabilities": self.capabilities, "lastSeen": now(), "pid": os.getpid(), "hostname": "test",
        }
        self.client.set(key("workers", self.name), compact(info))
        self.client.sadd(key("workers", "active"), self.name)
        self.client.set(key("workers", "heartbeat", self.name), now(), ex=LOCK_TTL)

    def leave(self):
        self.client.delete(key("workers", self.name), key("workers", "heartbeat", self.name))
        self.client.srem(key("workers", "active"), self.name)

    def execute(self, job):
        """Runs the handler and writes its result; says whether it succeeded."""
        name, started = job["jobId"], now()
        if job["type"] == "fail":
            result = {"success": False, "error": {"message": "as asked", "name": "Error"}}
        else:
            result = {"success": True, "data": {"by": self.name, "got": job["payload"]}}
        result.update(completedAt=now(), processingTime=now() - started)
        self.client.set(key("jobs", "result", name), compact(result), ex=86400)
        print(name, job["type"], flush=True)
        return result["success"]

    def finish(self, job, release):
        name = job["jobId"]
        if self.execute(job):
            self.client.set(key("jobs", "status", name), "completed")
        elif job["attempts"] < job["retry"]["attempts"]:
            job["attempts"] += 1
            self.client.set(key("jobs", "data", name), compact(job))
            self.client.rpush(key("jobs", "waiting"), name)
            self.client.set(key("jobs", "status", name), "waiting")
        else:
            self.client.lpush(key("jobs", "deadletter"), name)
            self.client.set(key("jobs", "status", name), "dead")
        release(name)

    def run(self, step):
        self.register()
        while not self.stop.is_set():
            if not step():
                self.stop.wait(0.02)
        self.leave()


class ClassWorker(Worker):
    """LPOP, then the lock; looks at neither target nor pause nor limit."""

    def __init__(self, client, name, kinds):
        super().__init__(client, name)
        self.kinds = kinds

    def step(self):
        name = self.client.lpop(key("jobs", "waiting"))
        if name is None:
            return False
        data = self.client.get(key("jobs", "data", name))
        if data is None:
            return True
        job = json.loads(data)
        mine = job["type"] in self.kinds
        if not mine or not self.client.set(key("jobs", "lock", name), self.name, nx=True, ex=LOCK_TTL):
            self.client.rpush(key("jobs", "waiting"), name)
            self.client.set(key("jobs", "status", name), "waiting")
            self.stop.wait(0.02)
            return True
        self.client.set(key("jobs", "status", name), "active")
        self.finish(job, self.release)
        return True

    def release(self, name):
        self.client.eval(UNLOCK, 1, key("jobs", "lock", name), self.name)
        self.client.srem(key("jobs", "active"), name)


# The protocol's claim: looks at a hundred ids from the head and takes the first that is for us.
CLAIM = """
local function fits(list, mine, all)
  if type(list) ~= 'table' or #list == 0 then return true end
  local has, found = {}, 0
  for _, one in ipairs(mine) do has[one] = true end
  for _, one in ipairs(list) do if has[one] then found = found + 1 end end
  if all then return found == #list end
  return found > 0
end
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, 99)) do
  local lock = ARGV[7] .. id
  if redis.call('SET', lock, ARGV[1], 'NX', 'EX', ARGV[5]) then
    local text = redis.call('GET', ARGV[6] .. id)
    if not text then
      redis.call('LREM', KEYS[1], 1, id)
      redis.call('DEL', lock)
    else
      local job = cjson.decode(text)
      local counter, target = ARGV[8] .. job.type, job.target or {}
      local limit = job.rateLimit and job.rateLimit.maxConcurrent
      local count = tonumber(redis.call('GET', counter) or '-1')
      local ok = redis.call('SISMEMBER', KEYS[3], job.type) == 0 and not (limit and count >= limit)
      if ok and target.server and target.server ~= '' then
        ok = target.server == ARGV[1]
      elseif ok then
        local all = target.mode and target.mode ~= 'any'
        ok = fits(target.stack, cjson.decode(ARGV[2])) and fits(target.region, cjson.decode(ARGV[4]))
          and fits(target.capabilities, cjson.decode(ARGV[3]), all)
      end
      if ok then
        redis.call('LREM', KEYS[1], 1, id)
        redis.call('SADD', KEYS[2], id)
        redis.call('INCR', counter)
        return text
      end
      redis.call('DEL', lock)
    end
  end
end
return false
"""

RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
if tonumber(redis.call('GET', KEYS[3]) or '0') > 0 then redis.call('DECR', KEYS[3]) end
return 1
"""


class ScriptWorker(Worker):
    """By the documented scripts: honours target, pause and limit."""

    def step(self):
        text = self.client.eval(
            CLAIM, 3, key("jobs", "waiting"), key("jobs", "active"), key("queues", "paused"),
            self.name, compact([self.stack]), compact(self.capabilities), compact([self.region]), LOCK_TTL,
            key("jobs", "data", ""), key("jobs", "lock", ""), key("ratelimit", "concurrent", ""))
        if not text:
            return False
        job = json.loads(text)
        self.client.set(key("jobs", "status", job["jobId"]), "active")
        self.finish(job, lambda name: self.client.eval(
            RELEASE, 3, key("jobs", "lock", name), key("jobs", "active"),
            key("ratelimit", "concurrent", job["type"]), self.name, name))
        return True


def no_nulls(document):
    if isinstance(document, dict):
        return all(no_nulls(value) for value in document.values())
    if isinstance(document, list):
        return all(no_nulls(value) for value in document)
    return document is not None


def check(client, names):
    for name in names:
        status = client.get(key("jobs", "status", name))
        result = json.loads(client.get(key("jobs", "result", name)) or "{}")
        # A slow producer may write its status after a fast worker: then the result is what counts.
        assert status in ("completed", "waiting"), (name, status)
        assert result.get("success") is True and no_nulls(result), (name, result)
        assert isinstance(result["completedAt"], int) and isinstance(result["processingTime"], int), result
        assert 0 < client.ttl(key("jobs", "result", name)) <= 86400
        job = json.loads(client.get(key("jobs", "data", name)))
        assert job["jobId"] == name and no_nulls(job), job
        assert client.get(key("jobs", "lock", name)) is None
    waiting = [one for one in client.lrange(key("jobs", "waiting"), 0, -1) if one != "-"]
    assert not set(waiting) & set(names), waiting
    assert client.scard(key("jobs", "active")) == 0
    for counter in client.scan_iter(key("ratelimit", "concurrent", "*")):
        assert int(client.get(counter)) == 0, (counter, client.get(counter))
    print("good")


def main():
    client = redis.Redis.from_url(sys.argv[1], decode_responses=True, socket_timeout=30)
    what, rest = sys.argv[2], sys.argv[3:]
    if what == "produce":
        for _ in range(int(rest[0])):
            print(dispatch(client, json.loads(rest[1])), flush=True)
        return
    if what == "check":
        check(client, rest)
        return
    if what == "class":
        worker = ClassWorker(client, rest[0], rest[1].split(","))
    else:
        capabilities = [one for one in rest[3].split(",") if one]
        worker = ScriptWorker(client, rest[0], rest[1], rest[2], capabilities)
    loop = threading.Thread(target=worker.run, args=(worker.step,))
    loop.start()
    sys.stdin.read()
    worker.stop.set()
    loop.join()


main()
