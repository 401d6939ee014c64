#!/usr/bin/env python3
"""Measures how long a client waits for its session: by its method of identification, and while strangers connect.

    door.py --build FOLDER [--before FOLDER] [--old-kernel] [--driver softgpu] [--runs 20] [--strangers 10000]

The first table has the time of cuInit() in a new process: over shared memory, over TCP with a ticket,
over TLS with a token, and with neither identity nor encryption. --before names the build folder of another
commit, which is measured in turn, with the methods that it supports. --old-kernel adds a server that runs as on a
kernel before 6.16, without SO_PASSRIGHTS: a helper process closes its local connections (docs/security.md,
"Descriptors").
The second table, which --strangers 0 leaves out, has the same time over TCP while strangers hold connections to
the server's port: silent connections, incomplete introductions, garbage, and TLS handshakes that stop halfway. A
stranger that is dropped connects again at once.
"""

import argparse
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import make_token, message, old_kernel, Server  # noqa: E402

POOL = 2

CLIENT = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
begin = time.perf_counter()
result = cuda.cuInit(0)
end = time.perf_counter()
assert result == 0, result
print(end - begin)
"""


def session_start(build, environment):
    """Returns the milliseconds of cuInit() in a new client process."""
    result = subprocess.run([sys.executable, "-c", CLIENT, os.path.join(build, "lib/librcuda.so")],
                            env=dict(os.environ, **environment), capture_output=True, text=True,
                            timeout=120)
    if result.returncode:
        raise SystemExit(result.stderr)
    return float(result.stdout) * 1e3


class Strangers:
    """Keeps up to `count` connections of all kinds open. Their origin is that of the measured client, which is the
    hardest case."""

    def __init__(self, port, count):
        hello = bytes.fromhex("16030100c8010000c40303") + os.urandom(32)
        self.kinds = [b"", message(1, bytes(40))[:-8], os.urandom(64), hello]
        self.port, self.count = int(port), count
        self.selector = selectors.DefaultSelector()
        self.open, self.opened, self.dropped, self.over = 0, 0, 0, False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def connect(self):
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", self.port))
        self.selector.register(stranger, selectors.EVENT_READ | selectors.EVENT_WRITE,
                               self.kinds[self.opened % len(self.kinds)])
        self.open += 1
        self.opened += 1

    def run(self):
        while not self.over:
            for _ in range(min(200, self.count - self.open)):
                self.connect()
            for key, events in self.selector.select(0.01):
                stranger = key.fileobj
                try:
                    if events & selectors.EVENT_WRITE:
                        stranger.send(key.data)
                        self.selector.modify(stranger, selectors.EVENT_READ, key.data)
                        continue
                    if stranger.recv(1 << 12):
                        continue
                except OSError:
                    pass
                self.selector.unregister(stranger)
                stranger.close()
                self.open -= 1
                self.dropped += 1
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()

    def stop(self):
        self.over = True
        self.thread.join()


def print_row(name, values):
    values = sorted(values)
    print(f"| {name:42} | {values[0]:8.2f} | {statistics.median(values):8.2f} | {values[-1]:8.2f} |")


def beside_strangers(server, ways, arguments):
    strangers = Strangers(server.port, arguments.strangers)
    while strangers.opened < arguments.strangers:
        time.sleep(0.1)
    print_header(f"with {arguments.strangers} strangers")
    for way in ("TCP, ticket", "TCP, token over TLS"):
        values = []
        for _ in range(arguments.runs):
            values.append(session_start(*ways[way]))
            # Lets the server start a new idle worker. A query for it would queue after the strangers.
            time.sleep(1)
        print_row(way, values)
    strangers.stop()
    print(f"\n{strangers.opened} connections of strangers, {strangers.dropped} of them dropped")


def print_header(title):
    print(f"\n| {title:42} | {'least ms':>8} | {'median':>8} | {'most':>8} |")
    print("|" + "-" * 44 + "|" + ("-" * 10 + "|") * 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--before")
    parser.add_argument("--old-kernel", action="store_true")
    parser.add_argument("--driver", default="softgpu")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--strangers", type=int, default=10000)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    build = os.path.abspath(arguments.build)
    with tempfile.TemporaryDirectory() as folder:
        options = ("--pool", str(POOL))
        server = Server(build, arguments.driver, options=options,
                        environment=make_token(build, folder))
        open_door = Server(build, arguments.driver, options=(*options, "--insecure"))
        secure = {"RCUDA_DEVICES": server.address()}
        ways = {
            "shared memory": (build, {**secure, "RCUDA_TRANSPORT": "shm"}),
            "TCP, ticket": (build, {**secure, "RCUDA_TRANSPORT": "tcp"}),
            "TCP, token over TLS": (build, {**secure, "RCUDA_TRANSPORT": "tcp", "RCUDA_SECURITY": "tls",
                                            "RCUDA_TOKEN_FILE": os.path.join(folder, "token")}),
            "TCP, no identity, no encryption": (build, {"RCUDA_DEVICES": open_door.address(),
                                                        "RCUDA_TRANSPORT": "tcp",
                                                        "RCUDA_SECURITY": "none"}),
        }
        servers = [server, open_door]
        builds = [build, build]
        if arguments.before:
            before = os.path.abspath(arguments.before)
            its_folder = os.path.join(folder, "before")
            os.mkdir(its_folder)
            servers.append(Server(before, arguments.driver, options=options,
                                  environment=make_token(before, its_folder)))
            builds.append(before)
            for way in ("shared memory", "TCP, ticket", "TCP, token over TLS"):
                environment = {**ways[way][1], "RCUDA_DEVICES": servers[-1].address()}
                if "RCUDA_TOKEN_FILE" in environment:
                    environment["RCUDA_TOKEN_FILE"] = os.path.join(its_folder, "token")
                ways[f"{way}, before"] = (before, environment)
        if arguments.old_kernel:
            servers.append(Server(build, arguments.driver, options=options, wrapper=old_kernel(folder)))
            builds.append(build)
            for name, transport in (("shared memory", "shm"), ("TCP, ticket", "tcp")):
                ways[f"{name}, old kernel"] = (build, {"RCUDA_DEVICES": servers[-1].address(),
                                                       "RCUDA_TRANSPORT": transport})
        times = {way: [] for way in ways}
        for _ in range(arguments.runs):
            for way, (its_build, environment) in ways.items():
                for each, each_build in zip(servers, builds):
                    each.await_pool(each_build, POOL)
                times[way].append(session_start(its_build, environment))
        print_header("start of a session")
        for way, values in times.items():
            print_row(way, values)
        # The difference between the two sessions of each round.
        for way in filter(lambda way: f"{way}, old kernel" in times, ways):
            print_row(f"{way}: more in old kernel",
                      [old - new for new, old in zip(times[way], times[f"{way}, old kernel"])])

        if arguments.strangers:
            beside_strangers(server, ways, arguments)
        for one in servers:
            outcome = one.stop()
            if outcome != 0:
                print(f"rcuda-server: {outcome}", file=sys.stderr)


if __name__ == "__main__":
    main()
