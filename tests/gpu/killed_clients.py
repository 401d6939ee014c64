#!/usr/bin/env python3
"""Kills programs that use a GPU over TCP with RCUDA_RECONNECT at random moments, and checks that they leave nothing behind.

    killed_clients.py --build FOLDER [--driver nvidia] [--clients 40] [--at-once 10] [--seed N]

Each client is tests/e2e/endless, which uses every kind of resource. To the server, a killed client looks like one that has lost
its network, so its session ends after reconnect_timeout. After that time there must be no session (rcuda-smi) and no worker
process, as much GPU memory must be in use as before (by NVML; on softgpu by rcuda-smi), and another client must work. Prints
each check, and exits with 1 if one fails. `--driver softgpu` tries the script without a GPU.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from servers import client_environment, eventually, Server  # noqa: E402

TIMEOUT = 3  # reconnect_timeout in seconds
# How much memory other programs and the kernel's driver may take during the test. A worker's context takes hundreds of MiB.
GPU_NOISE = 16 << 20


class NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Setup:
    def __init__(self, build, driver):
        self.build, self.driver = build, driver
        self.noise = 0 if driver == "softgpu" else GPU_NOISE
        self.server = Server(build, driver, "0", options=["--pool", "0"],
                             environment={"RCUDA_SERVER_RECONNECT_TIMEOUT": f"{TIMEOUT}s"})
        self.environment = client_environment(build, [self.server], "tcp", RCUDA_RECONNECT="60s", RCUDA_LOG="error")

    def start(self):
        return subprocess.Popen([os.path.join(self.build, "tests/e2e/endless")], env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def smi(self):
        shown = subprocess.run([os.path.join(self.build, "bin/rcuda-smi"), "--json", f"127.0.0.1:{self.server.port}"],
                               capture_output=True, text=True, check=True).stdout
        return json.loads(shown)[0]

    def used(self):
        """Bytes in use on the server's GPU, by all programs."""
        gpu = self.smi()["devices"][0]
        if self.driver == "softgpu":
            return gpu["used_bytes"]
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), NvmlMemory()
        for result in (nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByUUID(gpu["uuid"].encode(), ctypes.byref(device)),
                       nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)), nvml.nvmlShutdown()):
            if result != 0:
                sys.exit(f"NVML error {result}")
        return memory.used

    def is_empty(self):
        return not self.smi()["sessions"] and not self.server.workers()

    def run_one(self):
        """Runs a client and kills it after its first round. Returns the seconds of this round; None if it fails."""
        begin, client = time.monotonic(), self.start()
        works = client.stdout.readline() == "running\n"
        seconds = time.monotonic() - begin
        client.kill()
        error = client.communicate()[1]
        if not works:
            print(error, file=sys.stderr)
        return seconds if works else None


def kill_all(setup, clients, at_once, longest):
    """Runs `clients` in waves, and kills each after a random time of at most `longest`. Returns how many had begun their second
    round, and those that ended by themselves."""
    running, ended = 0, []
    for first in range(0, clients, at_once):
        wave = [(time.monotonic() + random.uniform(0, longest), setup.start()) for _ in range(min(at_once, clients - first))]
        for moment, client in sorted(wave, key=lambda each: each[0]):
            time.sleep(max(0, moment - time.monotonic()))
            code = client.poll()
            client.kill()
            out, error = client.communicate()
            running += "running" in out
            if code is not None:
                ended.append(f"a client ended with {code}: {out}{error}")
    return running, ended


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    print(f"seed {arguments.seed}")
    setup = Setup(arguments.build, arguments.driver)
    failures = []

    def check(what, holds):
        print(f"{what}: {'yes' if holds else 'NO'}", flush=True)
        if not holds:
            failures.append(what)

    # After the first client, the driver keeps some memory. This client also shows how long a start takes.
    start = setup.run_one()
    check("a client works", start is not None and eventually(setup.is_empty))
    if not failures:
        before = setup.used()
        # Clients that start together delay each other.
        running, ended = kill_all(setup, arguments.clients, arguments.at_once, start * arguments.at_once)
        failures += ended
        left, used = setup.smi()["sessions"], setup.used()
        print(f"{arguments.clients} clients killed, {running} of them after their first round; just after the last one, "
              f"{len(left)} sessions were left, and {used >> 20} MiB of the GPU's memory were in use")
        check("some were killed before their first round, and some after it", 0 < running < arguments.clients)
        check("the last ones were awaited", any(session["lost_seconds"] is not None for session in left))
        check("no session and no worker is left", eventually(setup.is_empty, TIMEOUT + 60))
        eventually(lambda: setup.used() <= before + setup.noise)
        after = setup.used()
        check(f"the GPU's memory is free ({before >> 20} MiB in use before, {after >> 20} MiB after)", after <= before + setup.noise)
        check("a client works afterwards", setup.run_one() is not None and eventually(setup.is_empty))
    outcome = setup.server.stop()
    check("the server stops", outcome == 0)
    if failures:
        print("\n".join(failures), setup.server.text(), file=sys.stderr, sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
