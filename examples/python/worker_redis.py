#!/usr/bin/env python3
"""A worker over the Redis protocol, with redis-py: the BridgeMQ v1 schema, on Tidegate's own port or on your Redis.

    REDIS_URL=redis://127.0.0.1:6380 python3 worker_redis.py [--drain]

For programs that speak Redis anyway. It sees the jobs of every producer, Tidegate's included. Compared with a worker
over HTTP it has to do more itself, and nobody enforces a job's timeout or stops it when the job is cancelled.
"""
import json
import os
import pathlib
import signal
import sys
import threading
import time

import redis

WORKER_ID = os.environ.get("WORKER_ID", f"python-redis-{os.getpid()}")
LOCK_SECONDS = 30

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6380"), decode_responses=True)
folder = pathlib.Path(__file__).resolve().parent.parent / "redis"
claim = client.register_script((folder / "claim.lua").read_text())
release = client.register_script((folder / "release.lua").read_text())
stop = threading.Event()


def key(*parts):
    return ":".join(("bridge", *parts))


def now_ms():
    return int(time.time() * 1000)


# 1. What to do, by job type.
def greet(payload):
    return {"greeting": f"Hello, {payload['name']}!"}


HANDLERS = {"greet": greet}


# 2. Registration. The heartbeat also keeps the locks of this worker's jobs: a lock that ends gives the job to
#    somebody else.
def register():
    info = {
        "serverId": WORKER_ID, "stack": "python", "region": "", "capabilities": [],
        "lastSeen": now_ms(), "pid": os.getpid(), "hostname": os.uname().nodename,
    }
    client.set(key("workers", WORKER_ID), json.dumps(info))
    client.sadd(key("workers", "active"), WORKER_ID)
    client.set(key("workers", "heartbeat", WORKER_ID), now_ms(), ex=LOCK_SECONDS)


def leave():
    client.delete(key("workers", WORKER_ID), key("workers", "heartbeat", WORKER_ID))
    client.srem(key("workers", "active"), WORKER_ID)


# 3. One job: its result is written before its status, so that whoever sees "completed" finds the result.
def run(job):
    name, started, over = job["jobId"], time.monotonic(), threading.Event()

    def keep():
        while not over.wait(LOCK_SECONDS / 3):
            client.expire(key("jobs", "lock", name), LOCK_SECONDS)
            client.set(key("workers", "heartbeat", WORKER_ID), now_ms(), ex=LOCK_SECONDS)

    threading.Thread(target=keep, daemon=True).start()
    try:
        result = {"success": True, "data": HANDLERS[job["type"]](job.get("payload"))}
    except Exception as error:  # whatever the handler raises is the error of the attempt
        result = {"success": False, "error": {"name": type(error).__name__, "message": str(error)}}
    finally:
        over.set()
    result |= {"completedAt": now_ms(), "processingTime": int((time.monotonic() - started) * 1000)}
    client.set(key("jobs", "result", name), json.dumps(result), ex=24 * 60 * 60)
    attempts, allowed = job.get("attempts", 0), (job.get("retry") or {}).get("attempts", 3)
    if result["success"]:
        client.set(key("jobs", "status", name), "completed")
    elif attempts < allowed:
        # v1 has no backoff: it is in line again at once.
        client.set(key("jobs", "data", name), json.dumps(job | {"attempts": attempts + 1}))
        client.set(key("jobs", "status", name), "waiting")
        client.rpush(key("jobs", "waiting"), name)
    else:
        client.set(key("jobs", "status", name), "dead")
        client.lpush(key("jobs", "deadletter"), name)
    release(
        keys=[key("jobs", "lock", name), key("jobs", "active"), key("ratelimit", "concurrent", job["type"])],
        args=[WORKER_ID, name],
    )
    print(name, client.get(key("jobs", "status", name)), flush=True)


# 4. The loop.
def work(drain):
    register()
    while not stop.is_set():
        text = claim(
            keys=[key("jobs", "waiting"), key("jobs", "active"), key("queues", "paused")],
            args=[
                WORKER_ID, '["python"]', "[]", "[]", LOCK_SECONDS, json.dumps(list(HANDLERS)),
                key("jobs", "data", ""), key("jobs", "lock", ""), key("ratelimit", "concurrent", ""),
            ],
        )
        if text:
            job = json.loads(text)
            client.set(key("jobs", "status", job["jobId"]), "active")
            run(job)
        elif drain:
            break
        else:
            client.set(key("workers", "heartbeat", WORKER_ID), now_ms(), ex=LOCK_SECONDS)
            stop.wait(0.2)
    leave()


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    work(drain="--drain" in sys.argv)
