#!/usr/bin/env python3
"""Checks that frameworks on a real GPU see and observe quotas of device memory.

    tests/gpu/quotas.py BUILD_FOLDER [DRIVER]

Starts a server that allows a session 8 GiB on each device, and a user 12 GiB. PyTorch with each of its
allocators, CuPy and JAX, as far as this Python has them, must see these limits in the reported sizes and in
their allocations. Memory that one process exports to another must count in both. A session without the device
of exported memory must not get the memory (not checked with a single device). Prints a line for each check,
and exits with 1 if a check fails. Needs an NVIDIA GPU with 16 GiB of free memory, unless DRIVER is softgpu; no
framework runs on softgpu.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from servers import client_environment, Server  # noqa: E402

LIMITS = """
[limits.session]
device_memory = "8G"
[limits.user]
device_memory = "12G"
"""

TORCH = """
import torch
GIB = 1 << 30
def refused(bytes):
    try:
        torch.empty(bytes, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return True
    return False
free, total = torch.cuda.mem_get_info()
print("total", total == 8 * GIB, torch.cuda.get_device_properties(0).total_memory == 8 * GIB)
print("free is at most the limit", free <= 8 * GIB)
seven = torch.empty(7 * GIB, dtype=torch.uint8, device="cuda")
print("after 7 GiB", torch.cuda.mem_get_info()[0] <= 1 * GIB, refused(2 * GIB))
del seven
torch.cuda.empty_cache()
parts = []
try:
    while True:
        parts.append(torch.empty(GIB // 4, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
print("parts of 256 MiB", 28 <= len(parts) <= 32)
del parts
torch.cuda.empty_cache()
print("free again", not refused(7 * GIB))
a = torch.ones(1000, 1000, device="cuda")
print("computes", float((a @ a).sum()) == 1e9)
"""

CUPY = """
import cupy
GIB = 1 << 30
print("total", cupy.cuda.runtime.memGetInfo()[1] == 8 * GIB)
kept = cupy.empty(7 * GIB, dtype=cupy.uint8)
try:
    cupy.empty(2 * GIB, dtype=cupy.uint8)
    print("refused", False)
except cupy.cuda.memory.OutOfMemoryError:
    print("refused", True)
"""

JAX = """
import jax, jax.numpy as jnp
stats = jax.devices()[0].memory_stats()
print("the pool is within the limit", 0 < stats["bytes_limit"] <= 8 << 30)
print("computes", float(jnp.ones((1000, 1000)).sum()) == 1e6)
"""

HOLD = """
import sys, torch
kept = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""

# Exports 3 GiB, and runs IMPORT in another process: sys.argv has IMPORT's code and RCUDA_DEVICES for it.
EXPORT = """
import ctypes, os, struct, subprocess, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
properties = struct.pack("<iiiiQQ", 1, 1, 1, 0, 0, 0)  # pinned, by descriptor, on device 0
assert cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(3 << 30), properties, ctypes.c_ulonglong(0)) == 0
assert cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, ctypes.c_ulonglong(0)) == 0
subprocess.run([sys.executable, "-c", sys.argv[1], str(descriptor.value)], check=True, pass_fds=[descriptor.value],
               env=dict(os.environ, RCUDA_DEVICES=sys.argv[2]))
"""

IMPORT = """
import ctypes, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
handles = [ctypes.c_uint64() for _ in range(2)]
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def free():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value >> 30
def import_to(handle):
    return cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(int(sys.argv[1])), 1)
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(6 << 30)) == 0
refused = import_to(handles[0])
assert cuda.cuMemFree_v2(address) == 0
print(refused, *map(import_to, handles), free(), *map(cuda.cuMemRelease, handles), free())
"""

CASES = (
    ("PyTorch", "torch", TORCH, {}),
    ("PyTorch, expandable segments", "torch", TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("PyTorch, cudaMallocAsync", "torch", TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    ("CuPy", "cupy", CUPY, {}),
    ("JAX", "jax", JAX, {}),
)


class Checks:
    def __init__(self, build, server):
        self.build, self.server, self.failed = build, server, 0

    def environment(self, transport, more):
        return client_environment(self.build, [self.server], transport, **more,
                                  LD_LIBRARY_PATH=os.path.join(self.build, "lib/rcuda"))

    def say(self, what, held):
        print(f"{'ok    ' if held else 'FAILED'} {what}", flush=True)
        self.failed += not held

    def run(self, name, transport, program, more):
        result = subprocess.run([sys.executable, "-c", program], env=self.environment(transport, more),
                                capture_output=True, text=True, timeout=180)
        if result.returncode:
            print(result.stderr[-2000:])
        self.say(f"{transport}: {name}: ends well", result.returncode == 0)
        for line in result.stdout.splitlines():
            self.say(f"{transport}: {name}: {line}", "False" not in line)

    def share(self, exporting, importing):
        """Returns the output of IMPORT. Each argument is the number of a device."""
        place = self.server.address
        environment = dict(self.environment("shm", {}), RCUDA_DEVICES=place(exporting))
        result = subprocess.run([sys.executable, "-c", EXPORT, IMPORT, place(importing)], env=environment,
                                capture_output=True, text=True, timeout=180)
        if result.returncode:
            print(result.stderr[-2000:])
        return result.stdout

    def check_imports(self):
        said = self.share(0, 0)
        self.say(f"imported memory counts once, from its import to its release: {said.strip()}", said == "2 0 0 5 0 0 8\n")
        if not re.search(r"serving .*: devices", self.server.text()):
            print("left out: memory of a device that the session does not have (there is a single device)")
            return
        said = self.share(1, 0)
        self.say(f"memory of another device is not imported: {said.strip()}", said.startswith("101 101 101 8 "))

    def hold(self, transport, gibibytes):
        return subprocess.Popen([sys.executable, "-c", HOLD, str(gibibytes)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                env=self.environment(transport, {}))

    def check_user(self):
        """Sessions of one user share its limit; a killed session does not count."""
        first = self.hold("shm", 7)
        self.say("a session holds 7 GiB", first.stdout.readline() == "held\n")
        second = self.hold("tcp", 7)
        self.say("another session of the user does not get 7 GiB", second.stdout.readline() == "" and second.wait() != 0)
        third = self.hold("tcp", 4)
        self.say("a third session of the user gets 4 GiB", third.stdout.readline() == "held\n")
        first.send_signal(signal.SIGKILL)
        first.wait()
        time.sleep(2)  # until the worker has ended
        fourth = self.hold("shm", 7)
        self.say("a fourth session gets 7 GiB after the first was killed", fourth.stdout.readline() == "held\n")
        for session in (third, fourth):
            session.communicate("")


def main():
    build = os.path.abspath(sys.argv[1])
    driver = sys.argv[2] if len(sys.argv) > 2 else "nvidia"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "server.toml")
        with open(path, "w") as file:
            file.write(LIMITS)
        server = Server(build, driver=driver, options=["--config", path, "--pool", "2"])
        checks = Checks(build, server)
        for name, module, program, more in CASES:
            if driver == "softgpu" or importlib.util.find_spec(module) is None:
                print(f"left out: {name}: no module {module}, or no GPU")
                continue
            for transport in ("shm", "tcp"):
                checks.run(name, transport, program, more)
        checks.check_imports()
        if driver != "softgpu" and importlib.util.find_spec("torch"):
            checks.check_user()
        outcome = server.stop()
        checks.say(f"the server ends: {outcome}", outcome == 0)
        print("\n".join(line for line in server.text().splitlines() if "warn" in line or "error" in line))
    sys.exit(checks.failed != 0)


if __name__ == "__main__":
    main()
