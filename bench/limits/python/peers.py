"""Python's limits for so many seconds, as src/main.rs: peers.py SECONDS URL"""

import asyncio
import json
import random
import resource
import sys
import time

from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter

IDENTITIES, CONCURRENCY = 10_000, 50


async def main(seconds, url):
    limiter = FixedWindowRateLimiter(RedisStorage("async+" + url, implementation="redispy"))
    item = RateLimitItemPerMinute(1_000_000)
    for n in range(200):
        await limiter.hit(item, str(n))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    start, used = time.perf_counter(), cpu()
    checks = bad = 0

    async def client():
        nonlocal checks, bad
        while time.perf_counter() - start < seconds:
            bad += not await limiter.hit(item, str(random.randrange(IDENTITIES)))
            checks += 1

    await asyncio.gather(*(client() for _ in range(CONCURRENCY)))
    print(json.dumps({"checks": checks, "bad": bad, "seconds": time.perf_counter() - start, "cpu": cpu() - used}))


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


asyncio.run(main(float(sys.argv[1]), sys.argv[2]))
