#!/usr/bin/env python3
"""How the HTTP side holds up beside nginx: idle live streams, slow clients, large bodies.

    ROUNDS=3 serving.py BINARY [idle|slow|large]...     without a word: all three

`idle`   opens 10,000 streams of events and divides the growth of the server's memory by them.
`slow`   lets slowhttptest hold 1,500 slow connections (heads, bodies, reads) while a client on
         another address calls the API, and tells that client's times.
`large`  sends bodies above the limit, with and without their length, and tells what came back.

The contenders take turns in each round. nginx answers calls with a fixed text, streams with its
module nchan and reads a file of the same size; tidegate checks who calls and builds its answers.

Needs Python 3.9 and the Debian packages slowhttptest, nginx, libnginx-mod-nchan and
libnginx-mod-http-echo.
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
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PAGE = "/docs/configuration"


class Server:
    """A process that serves on `port`, ended on exit."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def processes(self):
        return [self.process.pid]

    def resident(self):
        total = 0
        for pid in self.processes():
            with open(f"/proc/{pid}/status") as file:
                total += int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) * 1024
        return total

    def files(self):
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.processes())

    def get(self, connection, path="/api/v1/me"):
        connection.request("GET", path, headers={"authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status


class Nginx(Server):
    """nginx with two workers, which answers without asking anybody."""

    name, token = "nginx", "-"
    stream = "/live"

    def __init__(self, page):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        os.makedirs(os.path.join(self.folder.name, "docs"))
        with open(os.path.join(self.folder.name, PAGE[1:]), "wb") as file:
            file.write(page)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        conf = os.path.join(self.folder.name, "nginx.conf")
        with open(conf, "w") as file:
            file.write(f"""
                load_module /usr/lib/nginx/modules/ngx_nchan_module.so;
                load_module /usr/lib/nginx/modules/ngx_http_echo_module.so;
                worker_processes 2; worker_rlimit_nofile 40000; daemon off;
                pid {self.folder.name}/pid; error_log {self.folder.name}/error.log;
                events {{ worker_connections 20000; }}
                http {{
                    access_log off; client_header_timeout 30s; keepalive_requests 1000000;
                    server {{
                        listen 127.0.0.1:{self.port} backlog=4096; root {self.folder.name};
                        location = /api/v1/me {{ default_type application/json; return 200 '{{"role":"admin"}}'; }}
                        location = /live {{ nchan_subscriber eventsource; nchan_channel_id overview; }}
                        location /api/v1/queues/ {{ echo_read_request_body; echo '{{}}'; }}
                    }}
                }}""")
        self.process = subprocess.Popen(["nginx", "-c", conf, "-p", self.folder.name], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > until or self.process.poll() is not None:
                    sys.exit("nginx does not start; are libnginx-mod-nchan and libnginx-mod-http-echo installed?")

    def processes(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]


class Tidegate(Server):
    """The binary on a free port, in memory."""

    name = "tidegate"
    stream = "/api/v1/live?topics=overview"

    def __init__(self, binary, *settings):
        self.folder = tempfile.TemporaryDirectory()
        command = [binary, "serve", "--store", "embedded:", "--listen", "127.0.0.1:0", "--set", "resp.listen=off", "--set", "dns.listen=off"]
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


async def idle(server):
    """Bytes of the server's memory for each stream."""
    head = (f"GET {server.stream} HTTP/1.1\r\nhost: x\r\n"
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
    for task in tasks:
        task.cancel()
    return (after - before) / (len(opened) - count)


def probe(server, seconds):
    """Times of calls from another address, half on kept connections, half on new ones."""
    times, refused = [], 0
    new = lambda: http.client.HTTPConnection("127.0.0.1", server.port, source_address=("127.0.0.2", 0), timeout=10)
    kept = new()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for connection in (kept, None):
            started = time.monotonic()
            fresh = connection or new()
            refused += server.get(fresh) != 200
            times.append((time.monotonic() - started) * 1000)
            if connection is None:
                fresh.close()
        time.sleep(0.01)
    times.sort()
    return {"p50": statistics.median(times), "p99": times[int(len(times) * 0.99)], "most": times[-1],
            "calls": len(times), "refused": refused}


KINDS = {
    "slow heads": ["-H", "-u", "/api/v1/me"],
    "slow bodies": ["-B", "-s", "8192", "-f", "application/json", "-u", "/api/v1/queues/q/enqueue"],
    "slow reads": ["-X", "-w", "1", "-y", "8", "-n", "5", "-z", "8", "-u", PAGE],
}


def slow(server, flags):
    """Times of calls while slow clients hold their connections, and how many files were open."""
    url = f"http://127.0.0.1:{server.port}{flags[-1]}"
    attack = subprocess.Popen(
        ["slowhttptest", "-c", str(SLOW), "-r", "750", "-i", "5", "-l", "20", "-p", "5", *flags[:-1], url],
        stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    time.sleep(3)
    found = {"held": server.files(), **probe(server, 12)}
    attack.wait(60)
    return found


def spread(values, digits):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


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
    with Tidegate(binary) as server:
        page = page_of(server)
        if "large" in words:
            large(server)
    # All come from one address here; the caps per address would turn most of them away.
    contenders = [
        lambda: Tidegate(binary, "http.max_connections=20000", "http.max_connections_per_address=20000"),
        lambda: Nginx(page),
    ]
    each = {}
    for _ in range(ROUNDS):
        for contender in contenders:
            if "idle" in words:
                with contender() as server:
                    each.setdefault(("idle streams", server.name), []).append(asyncio.run(idle(server)))
            if "slow" in words:
                with contender() as server:
                    each.setdefault(("none slow", server.name), []).append({"held": 0, **probe(server, 5)})
                for what, flags in KINDS.items():
                    with contender() as server:
                        each.setdefault((what, server.name), []).append(slow(server, flags))
    print(f"{ROUNDS} rounds in turns; median (low–high)")
    for (what, name), found in each.items():
        if what == "idle streams":
            print(f"{what} | {name} | {spread(found, 0)} bytes each")
            continue
        of = lambda field: [round[field] for round in found]
        print(f"{what} | {name} | p50 {spread(of('p50'), 1)} ms | p99 {spread(of('p99'), 1)} ms | most {max(of('most')):.1f} ms"
              f" | {sum(of('calls'))} calls, {sum(of('refused'))} refused, {min(of('held'))} files open and more")


def page_of(server):
    """The page that slow readers read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", PAGE)
    return connection.getresponse().read()


main()
