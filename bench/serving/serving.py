#!/usr/bin/env python3
"""How the HTTP side holds up: idle live streams, slow clients, large bodies.

    serving.py BINARY [idle|slow|large]...     without a word: all three

`idle`   opens 10,000 streams of events and divides the growth of the server's memory by them.
`slow`   lets slowhttptest hold 1,500 slow connections (heads, bodies, reads) while a client on
         another address calls the API, and tells that client's times.
`large`  sends bodies above the limit, with and without their length, and tells what came back.

Needs Python 3.9 and, for `slow`, the Debian package slowhttptest.
"""

import asyncio
import http.client
import os
import re
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

STREAMS = 10_000
SLOW = 1_500


class Server:
    """The binary on a free port, in memory, ended on exit."""

    def __init__(self, binary, *settings):
        self.folder = tempfile.TemporaryDirectory()
        command = [binary, "serve", "--store", "embedded:", "--listen", "127.0.0.1:0", "--set", "resp.listen=off"]
        for setting in settings:
            command += ["--set", setting]
        self.log = open(os.path.join(self.folder.name, "log"), "w")
        self.process = subprocess.Popen(command, cwd=self.folder.name, stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.process.stdout:
            found = re.search(r"Dashboard\s+http://127\.0\.0\.1:(\d+)/", line)
            if found:
                self.port = int(found[1])
            if "Admin token" in line:
                break
        with open(os.path.join(self.folder.name, "tidegate-data/admin-token")) as file:
            self.token = file.read().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) * 1024

    def get(self, connection, path="/api/v1/me"):
        connection.request("GET", path, headers={"authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status


async def idle(server):
    head = (f"GET /api/v1/live?topics=overview HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {server.token}\r\naccept: text/event-stream\r\n\r\n").encode()
    opened = []

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**12)
        writer.write(head)
        await reader.readuntil(b"\r\n\r\n")
        opened.append((reader, writer))

    async def drain(reader):
        while await reader.read(2**16):
            pass

    # A few first, so that what is made once does not count.
    await asyncio.gather(*(one() for _ in range(200)))
    await asyncio.sleep(5)
    before, count = server.resident(), len(opened)
    tasks = [asyncio.ensure_future(drain(reader)) for reader, _ in opened]
    while len(opened) < STREAMS:
        fresh = len(opened)
        await asyncio.gather(*(one() for _ in range(min(200, STREAMS - fresh))))
        tasks += [asyncio.ensure_future(drain(reader)) for reader, _ in opened[fresh:]]
    await asyncio.sleep(10)
    after = server.resident()
    each = (after - before) / (len(opened) - count)
    print(f"idle streams: {len(opened)}, memory {before / 2**20:.1f} MiB -> {after / 2**20:.1f} MiB, {each:.0f} bytes each")
    for task in tasks:
        task.cancel()


def probe(server, seconds):
    """Times of calls from another address, half on kept connections, half on new ones."""
    times, statuses = [], {}
    kept = http.client.HTTPConnection("127.0.0.1", server.port, source_address=("127.0.0.2", 0), timeout=10)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for connection in (kept, None):
            started = time.monotonic()
            fresh = connection or http.client.HTTPConnection("127.0.0.1", server.port, source_address=("127.0.0.2", 0), timeout=10)
            status = server.get(fresh)
            times.append((time.monotonic() - started) * 1000)
            statuses[status] = statuses.get(status, 0) + 1
            if connection is None:
                fresh.close()
        time.sleep(0.01)
    return times, statuses


def told(what, times, statuses):
    times.sort()
    at = lambda share: times[min(len(times) - 1, int(len(times) * share))]
    print(f"{what}: {len(times)} calls {statuses}, p50 {statistics.median(times):.1f} ms, p99 {at(0.99):.1f} ms, most {times[-1]:.1f} ms")
    return at(0.99)


def slow(binary):
    kinds = {
        "slow heads": ["-H", "-u", "/api/v1/me"],
        "slow bodies": ["-B", "-s", "8192", "-f", "application/json", "-u", "/api/v1/queues/q/enqueue"],
        "slow reads": ["-X", "-w", "1", "-y", "8", "-n", "5", "-z", "8", "-u", "/docs/configuration"],
    }
    for what, flags in kinds.items():
        # All come from one address here; the cap per address would turn most of them away.
        with Server(binary, "http.max_connections_per_address=4096") as server:
            told(f"{what}, before", *probe(server, 3))
            url = f"http://127.0.0.1:{server.port}{flags[-1]}"
            attack = subprocess.Popen(
                ["slowhttptest", "-c", str(SLOW), "-r", "750", "-i", "5", "-l", "20", "-p", "5", *flags[:-1], url],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            time.sleep(3)
            held = len(os.listdir(f"/proc/{server.process.pid}/fd"))
            p99 = told(f"{what}, {held} files open", *probe(server, 12))
            attack.wait(60)
            print("  " + ("holds" if p99 < 200 else "DOES NOT HOLD") + ": p99 below 200 ms")


def large(server):
    limit = 1 << 20
    for what, send in {"with its length": False, "without its length": True}.items():
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            length = "transfer-encoding: chunked" if send else f"content-length: {limit + 1}"
            s.sendall((f"POST /api/v1/tokens HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\n"
                       f"content-type: application/json\r\n{length}\r\n\r\n").encode())
            try:
                for _ in range(limit // 65536 + 2):
                    body = b" " * 65536
                    s.sendall(b"%x\r\n%s\r\n" % (len(body), body) if send else body)
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                first = s.recv(4096).split(b"\r\n")[0].decode()
            except ConnectionResetError:
                first = "connection reset"
            print(f"a body above the limit, {what}: {first}")


def main():
    binary, *words = sys.argv[1:] or sys.exit(__doc__)
    binary = os.path.abspath(binary)
    words = words or ["idle", "slow", "large"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 40_000), hard))
    if "idle" in words:
        with Server(binary, "http.max_connections=20000", "http.max_connections_per_address=20000") as server:
            asyncio.run(idle(server))
    if "slow" in words:
        slow(binary)
    if "large" in words:
        with Server(binary) as server:
            large(server)


main()
