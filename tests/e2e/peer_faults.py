#!/usr/bin/env python3
"""Copies between servers during faults, and the refusal of wrong settings.

    peer_faults.py --build FOLDER [--preload LIBRARY] CASE

Cases:
  killed       a worker dies during a copy: the copy's stream and the other device get errors,
               another session continues, and the servers still serve programs and hold no resource of
               the dead session
  settings     with a wrong value, the program prints one line on stderr and gets no device
  unreachable  two workers that cannot reach each other: the copies fail, and one line gives the
               reason
  plan         rcuda-p2p's table for two running servers
  cut          connections between the servers and to the client are lost and come back: the copies continue
  lost         the connection between the servers does not come back: one line names both and the reason
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cutting_proxy import CuttingProxy  # noqa: E402
from with_servers import Server  # noqa: E402

MIB = 1 << 20
UNAVAILABLE, EXTERNAL_DEVICE = 46, 911
PEER_HELLO = 7
PRELOAD = ""  # a sanitizer's runtime, preloaded before the library


class Cuda:
    """The calls of the process's libcuda.so.1 that the clients here need."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        self.contexts = []
        for ordinal in range(2):
            context = ctypes.c_void_p()
            self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
            self.contexts.append(context)

    def call(self, name, *arguments):
        return getattr(self.driver, name)(*arguments)

    def check(self, name, *arguments):
        result = self.call(name, *arguments)
        if result != 0:
            sys.exit(f"{name} gave {result}")

    def use(self, device):
        self.call("cuCtxSetCurrent", self.contexts[device])

    def allocate(self, device, size):
        self.use(device)
        address = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def stream(self, device):
        self.use(device)
        stream = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def peer(self, to, source, size, stream):
        return self.call("cuMemcpyPeerAsync", to, self.contexts[1], source, self.contexts[0],
                         ctypes.c_size_t(size), stream)


def client_copying():
    """Copies from device 0 to device 1 until a worker is killed; prints the results."""
    cuda = Cuda()
    size = 64 * MIB
    source, target = cuda.allocate(0, size), cuda.allocate(1, size)
    streams = [cuda.stream(0), cuda.stream(1)]
    for i in range(20):
        if cuda.peer(target, source, size, streams[i % 2]) != 0:
            break
    print("copying", flush=True)
    for device in (0, 1):
        cuda.use(device)
        print(device, cuda.call("cuStreamSynchronize", streams[device]), flush=True)


def client_going_on():
    """Copies between two devices and checks the bytes that arrive, until its stdin ends. For each byte
    of stdin prints a line when three further copies are done."""
    cuda = Cuda()
    size = 3 * MIB + 1
    source, target = cuda.allocate(0, size), cuda.allocate(1, size)
    got = ctypes.create_string_buffer(size)
    rounds = 0
    awaited = []  # the numbers of rounds to report
    os.set_blocking(0, False)
    while True:
        given = bytes([rounds % 251 + 1]) * size
        cuda.use(0)
        cuda.check("cuMemcpyHtoD_v2", source, given, ctypes.c_size_t(size))
        if cuda.call("cuMemcpyPeer", target, cuda.contexts[1], source, cuda.contexts[0], ctypes.c_size_t(size)) != 0:
            break
        cuda.use(1)
        cuda.check("cuMemcpyDtoH_v2", got, target, ctypes.c_size_t(size))
        if got.raw != given:
            sys.exit("wrong bytes")
        rounds += 1
        while awaited and awaited[0] <= rounds:
            print(awaited.pop(0), flush=True)
        try:
            if os.read(0, 1) == b"":
                return
            awaited.append(rounds + 3)
        except BlockingIOError:
            pass
    # Only one of the two workers reports the reason. The other worker may report the error earlier.
    os.set_blocking(0, True)
    while os.read(0, 1) != b"":
        pass
    sys.exit("the copies have failed")


def client_once():
    """Makes one copy in a stream and prints its result."""
    cuda = Cuda()
    source, target = cuda.allocate(0, MIB), cuda.allocate(1, MIB)
    stream = cuda.stream(0)
    # A copy that fails at once may return the error itself.
    print(cuda.peer(target, source, MIB, stream) or cuda.call("cuStreamSynchronize", stream),
          flush=True)


CLIENTS = {"copying": client_copying, "going-on": client_going_on, "once": client_once}


class Rig:
    def __init__(self, build, **settings):
        self.build = build
        os.environ.update(settings)
        self.servers = [Server(build, "softgpu", "", i) for i in range(2)]

    def environment(self, **more):
        pool = ",".join(f"127.0.0.1@{server.port}:0" for server in self.servers)
        return {**os.environ, "RCUDA_DEVICES": pool, "LD_PRELOAD": f"{PRELOAD} {self.build}/lib/librcuda.so", **more}

    def client(self, kind, **more):
        return subprocess.Popen([sys.executable, __file__, "--build", self.build, "--client", kind],
                                env=self.environment(**more), stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def expect(self, held, what):
        if not held:
            for server in self.servers:
                print(server.text(), file=sys.stderr)
            sys.exit(f"does not hold: {what}")

    def stop(self):
        for server in self.servers:
            self.expect(server.stop() == 0, "the servers stop cleanly")


def eventually(condition):
    """Waits until the condition is true. Has no limit of its own; the test's timeout ends it."""
    while not condition():
        time.sleep(0.05)


def case_killed(build):
    # The link is so slow that the copies last for seconds.
    rig = Rig(build, SOFTGPU_PCIE_GBPS="0.5")
    other = rig.client("going-on")
    go_on(rig, other)
    # On each server, the worker of the other session and one idle worker.
    settled = [2, 2]
    eventually(lambda: [len(server.workers()) for server in rig.servers] == settled)
    before = [server.descriptors() for server in rig.servers]
    client = rig.client("copying")
    rig.expect(client.stdout.readline() == "copying\n", "the copies are under way")
    session = [pid for pid in rig.servers[1].workers()
               if pid_serves(rig.servers[1], pid, client.pid)]
    rig.expect(len(session) == 1, "one worker of the second server has the session")
    os.kill(session[0], signal.SIGKILL)
    lines = client.stdout.read().split()
    client.wait()
    print("the killed session saw", lines)
    rig.expect(lines[0] == "0" and int(lines[1]) == EXTERNAL_DEVICE,
               "the stream of the device that is left gets an error")
    rig.expect(lines[2] == "1" and int(lines[3]) == UNAVAILABLE,
               "the dead worker's device is unavailable")
    go_on(rig, other)
    eventually(lambda: [len(server.workers()) for server in rig.servers] == settled)
    eventually(lambda: [server.descriptors() for server in rig.servers] == before)
    other.stdin.close()
    rig.expect(other.wait() == 0, "the other session ends well")
    again = rig.client("once")
    rig.expect(again.communicate()[0] == "0\n", "a new session copies")
    rig.stop()


def pid_serves(server, worker, client):
    return f"rcuda-worker[{worker}]" in "\n".join(
        line for line in server.text().splitlines() if f"pid {client} on" in line)


def case_settings(build):
    rig = Rig(build)
    for name, value in (("RCUDA_P2P", "sometimes"), ("RCUDA_P2P_STRATEGY", "fastest"),
                        ("RCUDA_P2P_STRATEGY", "v4b:1M"), ("RCUDA_P2P_PATH", "carrier-pigeon"),
                        ("RCUDA_SYNC", "maybe"), ("RCUDA_TRANSPORT", "udp"),
                        ("RCUDA_COPY_THREADS", "many"), ("RCUDA_COPY_THREADS", "65"),
                        ("RCUDA_MANAGED", "never")):
        client = rig.client("once", **{name: value})
        out, error = client.communicate()
        lines = [line for line in error.splitlines() if "rcuda[" in line]
        print(error.strip())
        rig.expect(client.returncode != 0 and out == "", f"{name}={value} is refused")
        rig.expect(len(lines) == 1 and name in lines[0] and value in lines[0],
                   f"one line names {name} and its value")
    rig.stop()


def case_unreachable(build):
    # A worker reports a failed connection at the end of this timeout.
    rig = Rig(build, RCUDA_SERVER_HANDSHAKE_TIMEOUT="2s")
    # This machine has no RDMA device, or none that can connect the two processes.
    client = rig.client("once", RCUDA_P2P_PATH="verbs")
    out, error = client.communicate()
    print(error.strip())
    rig.expect(out.strip() not in ("", "0"), "the copy fails")
    rig.expect(sum("copies between" in line for line in error.splitlines()) == 1,
               "one line says why")
    rig.stop()


def case_plan(build):
    rig = Rig(build)
    addresses = [f"127.0.0.1@{server.port}:0" for server in rig.servers]
    done = subprocess.run([os.path.join(build, "bin/rcuda-p2p"), "plan", "--from",
                           addresses[0], "--to", addresses[1], "--sizes", "4K,1M"],
                          capture_output=True, text=True)
    print(done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    rig.expect(done.returncode == 0 and "needs GPUDirect" in done.stdout, "methods and what they need")
    for line, size in zip(lines[-2:], ("4 KiB", "1 MiB")):
        costs, measured, plan = re.match(rf" *{size} +(.*\*.*?)  +([0-9.]+)[um]?s +[0-9.]+  (.*)", line).groups()
        rig.expect(re.match(r"[0-9.]+[um]?s \*, \d+ x ", costs) and float(measured) > 0,
                   "predicted and measured times")
        rig.expect("host over shm" in plan and "fastest of" in plan, "the plan and its reason")
    rig.stop()


def proxied_client(rig, **more):
    """Starts a client that copies and that connects to its servers through proxies."""
    # Not over shared memory, because the proxies stand for other machines.
    proxies = [CuttingProxy(server.port, seconds=1e6) for server in rig.servers]
    client = rig.client("going-on", RCUDA_DEVICES=",".join(proxy.address() for proxy in proxies), RCUDA_TRANSPORT="tcp",
                        RCUDA_SECURITY="none", **more)
    go_on(rig, client)
    return proxies, client


def go_on(rig, client):
    """Returns when the client has made copies that began after the call."""
    client.stdin.write("?")
    client.stdin.flush()
    if client.stdout.readline() == "":
        print(client.communicate()[1], file=sys.stderr)
        rig.expect(False, "the copies go on")


def case_cut(build):
    rig = Rig(build)
    proxies, client = proxied_client(rig, RCUDA_RECONNECT="60s")
    for way in ("reset", "close", "half", "swallow") * 3:
        for proxy in proxies:
            proxy.cut_all(way)
        go_on(rig, client)
    client.stdin.close()
    rig.expect(client.wait() == 0, "the client ends well")
    for server in rig.servers:
        rig.expect("the server 127.0.0.1" in server.text(), "the servers have lost their connection")
    rig.stop()


def case_lost(build):
    rig = Rig(build)
    proxies, client = proxied_client(rig, RCUDA_RECONNECT="1s")
    for proxy in proxies:
        proxy.refuse(PEER_HELLO)
    def is_reason(line):
        return line.startswith("rcuda: copies between ")
    error = []
    while not error or not is_reason(error[-1]):
        error.append(client.stderr.readline())
        rig.expect(error[-1] != "", "the client goes on until it is ended")
    error += client.communicate()[1].splitlines(True)
    print("".join(error))
    lines = [line for line in error if is_reason(line)]
    rig.expect(client.returncode != 0 and "the copies have failed\n" in error, "a copy fails")
    rig.expect(len(lines) == 1, "one line")
    rig.expect("127.0.0.1:" in lines[0] and "did not come back within 1s" in lines[0], "it names the server and the reason")
    rig.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--client", choices=CLIENTS)
    parser.add_argument("case", nargs="?", choices=["killed", "settings", "unreachable", "plan", "cut", "lost"])
    arguments = parser.parse_args()
    if arguments.client:
        CLIENTS[arguments.client]()
        return
    global PRELOAD
    PRELOAD = arguments.preload
    globals()[f"case_{arguments.case}"](os.path.abspath(arguments.build))


if __name__ == "__main__":
    main()
