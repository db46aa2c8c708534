#!/usr/bin/env python3
"""A worker over HTTP, with nothing but the standard library.

    TIDEGATE_URL=http://127.0.0.1:7070 TIDEGATE_TOKEN=… python3 worker_http.py [--drain]

It claims jobs of the types in HANDLERS, runs them, and says how they ended. A job belongs to the worker that
claimed it until its lease ends, so the lease is renewed while a handler runs. What the server answers to that also
says whether the job was cancelled meanwhile.
"""
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("TIDEGATE_URL", "http://127.0.0.1:7070")
TOKEN = os.environ["TIDEGATE_TOKEN"]
WORKER_ID = os.environ.get("WORKER_ID", f"python-{os.getpid()}")
LEASE_MS = 30_000

stop = threading.Event()


# 1. What to do, by job type: a function of the payload. What it returns is the job's result; what it raises
#    is its error, and the job's retry policy decides what comes next.
def greet(payload):
    return {"greeting": f"Hello, {payload['name']}!"}


HANDLERS = {"greet": greet}


# 2. One call. An error has a stable code, which programs go by, and a message for people.
class Refused(Exception):
    def __init__(self, status, error):
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.code = error.get("code")


def call(method, path, body=None):
    request = urllib.request.Request(
        f"{URL}/api/v1{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    try:
        # Longer than the longest wait that we ask for.
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise Refused(refusal.code, json.load(refusal).get("error", {})) from None


# 3. One job under its lease: `worker_id` and `token` name the lease in every call.
def run(lease):
    job, path = lease["job"], f"/jobs/{lease['job']['id']}"
    held = {"worker_id": lease["worker_id"], "token": lease["token"]}
    over = threading.Event()

    def renew():
        while not over.wait(LEASE_MS / 3000):
            try:
                if call("POST", f"{path}/renew", held)["cancelled"]:
                    print(f"{job['id']} was cancelled; what it returns will not count", file=sys.stderr)
            except (Refused, OSError) as error:
                print(f"{job['id']} not renewed: {error}", file=sys.stderr)

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    started = time.monotonic()
    try:
        ended = {"result": HANDLERS[job["type"]](job["payload"])}
        verb = "complete"
    except Exception as error:  # whatever the handler raises is the error of the attempt
        ended = {"error": {"name": type(error).__name__, "message": str(error)}}
        verb = "fail"
    finally:
        over.set()
    ended["took_ms"] = int((time.monotonic() - started) * 1000)
    try:
        outcome = call("POST", f"{path}/{verb}", held | ended)["outcome"]
        print(f"{job['id']} {outcome}", flush=True)
    except Refused as error:
        # LEASE_LOST: it took too long, and somebody else has the job now. Nothing to do about it here.
        print(f"{job['id']} does not count: {error}", file=sys.stderr)


# 4. The loop. A claim waits until there is a job, so an idle worker makes few calls.
def work(drain):
    while not stop.is_set():
        try:
            claimed = call("POST", "/jobs/claim", {
                "worker_id": WORKER_ID, "stack": "python", "types": list(HANDLERS),
                "wait_ms": 0 if drain else 5_000, "lease_ms": LEASE_MS,
            })
        except (Refused, OSError) as error:
            if isinstance(error, Refused) and error.code in ("UNAUTHORIZED", "FORBIDDEN"):
                raise
            print(f"no answer ({error}); trying again", file=sys.stderr)
            stop.wait(2)
            continue
        for lease in claimed["items"]:
            run(lease)
        if drain and not claimed["items"] and not claimed["more"]:
            break
    # So that the list of workers is true at once.
    call("DELETE", f"/jobs/workers/{WORKER_ID}")


if __name__ == "__main__":
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    work(drain="--drain" in sys.argv)
