#!/usr/bin/env python3
"""A BridgeMQ v1 producer: dispatches jobs with plain Redis commands, on Tidegate's own port or on your Redis.

    REDIS_URL=redis://127.0.0.1:6380 python3 producer_v1.py NAME…

Dispatches a job of type `greet` for each name and prints the ids. Any worker may run them: one of v1, one over HTTP,
`tidegate jobs exec`, or a Rust program.
"""
import json
import os
import sys
import time
import uuid

import redis

client = redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6380"), decode_responses=True)


def dispatch(job_type, payload, priority=5, delay_ms=0):
    job = {
        "jobId": str(uuid.uuid4()),
        "type": job_type,
        "payload": payload,
        "priority": priority,
        "schedule": {"delay": delay_ms} if delay_ms else {},
        "retry": {"attempts": 3, "backoff": {"type": "exponential", "delay": 2000}},
        "target": {},
        "dependsOn": [],
        "metadata": {},
        "attempts": 0,
        "createdAt": int(time.time() * 1000),
    }
    name = job["jobId"]
    # One transaction: nobody sees an id in line that has no data yet.
    with client.pipeline(transaction=True) as commands:
        commands.set(f"bridge:jobs:data:{name}", json.dumps(job))
        if delay_ms:
            commands.set(f"bridge:jobs:status:{name}", "delayed")
            commands.zadd("bridge:jobs:delayed", {name: job["createdAt"] + delay_ms})
        else:
            commands.set(f"bridge:jobs:status:{name}", "waiting")
            # v1's rule: priorities of 7 and more go to the head of the line.
            push = commands.lpush if priority >= 7 else commands.rpush
            push("bridge:jobs:waiting", name)
        commands.execute()
    return name


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(dispatch("greet", {"name": name}))
