#!/usr/bin/env python3
"""Measures the limits of the driver's checkpoint, and the speed of another way to park, on one GPU. Needs no server.

    park_paths.py [--gib 16] [--libcuda PATH] [--huge]

1. The host's memory: fresh pages written by one and by four threads, and page-locked memory, in GB/s.
2. Copies: page-locked, and pageable to fresh and to used pages.
3. The driver's checkpoint of a process that holds --gib GiB, three times in a row: seconds of each step, page faults and
   processor time of that process, and its huge pages. With --huge (root) once more with huge pages for all memory; the
   setting of the system is restored.
4. Memory of cuMemCreate at fixed addresses, in pieces of 2, 64 and 1024 MiB: copied to page-locked memory, released,
   created and mapped again, and copied back; GB/s as a whole and seconds of each step.

Prints tables. Exits with 1 if contents are wrong afterwards. (The program that is checkpointed is `park_paths.py hold BYTES`.)
"""

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time

GIB, MIB = 1 << 30, 1 << 20
HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"
LIBRARY = os.environ.get("PARK_PATHS_LIBCUDA", "libcuda.so.1")
u64, size, integer = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int


class Driver:
    """The driver API with a current context. Each call raises an error that names it unless it succeeds."""

    def __init__(self):
        self.library = ctypes.CDLL(LIBRARY)
        context = ctypes.c_void_p()
        self.cuInit(0)
        self.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.cuCtxSetCurrent(context)

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                raise RuntimeError(f"{name} returned {result}")
        return call

    def allocate(self, count):
        address = u64()
        self.cuMemAlloc_v2(ctypes.byref(address), size(count))
        return address

    def host(self, count):
        address = ctypes.c_void_p()
        self.cuMemHostAlloc(ctypes.byref(address), size(count), 0)
        return address


class Location(ctypes.Structure):
    _fields_ = [("type", integer), ("id", integer)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", integer), ("handles", integer), ("location", Location), ("win32", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", Location), ("flags", integer)]


PINNED = Properties(type=1, handles=0, location=Location(1, 0))
READ_WRITE = Access(location=Location(1, 0), flags=3)


class Timer:
    def __init__(self):
        self.last = time.perf_counter()

    def lap(self):
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return seconds


def rate(count, work):
    timer = Timer()
    work()
    return f"{count / timer.lap() / 1e9:.2f}"


def usage(pid):
    """Returns the page faults of a process, and its seconds in the program and in the kernel."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(words[7]) + int(words[9]), int(words[11]) / tick, int(words[12]) / tick


def huge_gib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages")) / MIB


def hold(count):
    """Holds `count` bytes of GPU memory with known contents. Checks them once for each line of stdin."""
    driver = Driver()
    piece = min(count, 64 * MIB)
    pieces = [driver.allocate(piece) for _ in range(count // piece)]
    for number, address in enumerate(pieces):
        driver.cuMemsetD32_v2(address, ctypes.c_uint(number + 1), size(piece // 4))
    driver.cuCtxSynchronize()
    print("ready", flush=True)
    word = ctypes.c_uint()
    for _ in sys.stdin:
        right = True
        for number, address in enumerate(pieces):
            driver.cuMemcpyDtoH_v2(ctypes.byref(word), u64(address.value + piece - 4), size(4))
            right = right and word.value == number + 1
        print("right" if right else "WRONG", flush=True)


def write_pages(count, threads):
    memory = mmap.mmap(-1, count)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    share = count // threads
    parts = [threading.Thread(target=ctypes.memset, args=(base + i * share, 1, share)) for i in range(threads)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    return memory


def host_memory(driver, count):
    print(f"\n| host memory, {count / GIB:g} GiB | GB/s |\n|---|---|")
    for way in ("first", "again"):
        for threads in (1, 4):
            print(f"| fresh pages written by {threads} thread(s), {way} | {rate(count, lambda: write_pages(count, threads))} |")
        taken = []
        print(f"| cuMemHostAlloc, {way} | {rate(count, lambda: taken.append(driver.host(count)))} |")
        print(f"| cuMemFreeHost, {way} | {rate(count, lambda: driver.cuMemFreeHost(taken[0]))} |", flush=True)


def copies(driver, count):
    device, locked = driver.allocate(count), driver.host(count)
    pageable = mmap.mmap(-1, count)
    base = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pageable)))
    print(f"\n| copy of {count / GIB:g} GiB | to the host, GB/s | to the GPU, GB/s |\n|---|---|---|")
    for name, host in (("page-locked", locked), ("pageable, fresh pages", base), ("pageable, used pages", base)):
        out = rate(count, lambda: driver.cuMemcpyDtoH_v2(host, device, size(count)))
        back = rate(count, lambda: driver.cuMemcpyHtoD_v2(device, host, size(count)))
        print(f"| {name} | {out} | {back} |", flush=True)
    driver.cuMemFreeHost(locked)
    driver.cuMemFree_v2(device)


def checkpoints(driver, count, name):
    """Returns whether the contents were right."""
    child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "hold", str(count)], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    right = True
    for number in (1, 2, 3):
        faults, user, kernel = usage(child.pid)
        timer, steps = Timer(), []
        for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
            getattr(driver, "cuCheckpointProcess" + step)(child.pid, None)
            steps.append(timer.lap())
            if step == "Checkpoint":
                after = usage(child.pid)
                huge = huge_gib(child.pid)
                timer.lap()
        child.stdin.write("\n")
        child.stdin.flush()
        right = child.stdout.readline() == "right\n" and right
        print(f"| {name} | {number} | " + " | ".join(f"{seconds:.2f}" for seconds in steps) +
              f" | {count / steps[1] / 1e9:.2f}, {count / steps[2] / 1e9:.2f} | {after[0] - faults} | "
              f"{after[1] - user:.1f}, {after[2] - kernel:.1f} | {huge:.1f} | {'right' if right else 'WRONG'} |", flush=True)
    child.stdin.close()
    child.wait()
    return right


def all_checkpoints(driver, count, huge):
    print(f"\n| checkpoint of {count / GIB:g} GiB | time | lock s | checkpoint s | restore s | unlock s | GB/s out, back | "
          "page faults | its s in program, kernel | huge pages GiB | contents |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    right = checkpoints(driver, count, "as the system is")
    if huge:
        with open(HUGE) as file:
            before = file.read().split("[")[1].split("]")[0]
        try:
            with open(HUGE, "w") as file:
                file.write("always")
            right = checkpoints(driver, count, "huge pages") and right
        finally:
            with open(HUGE, "w") as file:
                file.write(before)
    return right


def handles(driver, count, piece):
    """Parks and wakes twice. Returns whether the contents were right."""
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        driver.cuStreamCreate(ctypes.byref(stream), 1)
    base, host, number = u64(), driver.host(count), count // piece
    driver.cuMemAddressReserve(ctypes.byref(base), size(count), size(0), u64(0), u64(0))
    owned = [u64() for _ in range(number)]

    def create():
        for handle in owned:
            driver.cuMemCreate(ctypes.byref(handle), size(piece), ctypes.byref(PINNED), u64(0))

    def attach():
        for place, handle in enumerate(owned):
            driver.cuMemMap(u64(base.value + place * piece), size(piece), size(0), handle, u64(0))
        driver.cuMemSetAccess(base, size(count), ctypes.byref(READ_WRITE), size(1))

    def copy(out):
        for place in range(number):
            device, there = u64(base.value + place * piece), ctypes.c_void_p(host.value + place * piece)
            if out:
                driver.cuMemcpyDtoHAsync_v2(there, device, size(piece), streams[place % 2])
            else:
                driver.cuMemcpyHtoDAsync_v2(device, there, size(piece), streams[place % 2])
        driver.cuCtxSynchronize()

    def release():
        driver.cuMemUnmap(base, size(count))
        for handle in owned:
            driver.cuMemRelease(handle)

    create()
    attach()
    for place in range(number):
        driver.cuMemsetD32_v2(u64(base.value + place * piece), ctypes.c_uint(place + 1), size(piece // 4))
    driver.cuCtxSynchronize()
    word, right = ctypes.c_uint(), True
    for way in ("first", "again"):
        timer, steps = Timer(), []
        for step in (lambda: copy(True), release, create, attach, lambda: copy(False)):
            step()
            steps.append(timer.lap())
        for place in range(number):
            driver.cuMemcpyDtoH_v2(ctypes.byref(word), u64(base.value + (place + 1) * piece - 4), size(4))
            right = right and word.value == place + 1
        print(f"| {piece // MIB} | {way} | " + " | ".join(f"{seconds:.3f}" for seconds in steps) +
              f" | {count / sum(steps[:2]) / 1e9:.1f}, {count / sum(steps[2:]) / 1e9:.1f} | {'right' if right else 'WRONG'} |", flush=True)
    release()
    driver.cuMemAddressFree(base, size(count))
    driver.cuMemFreeHost(host)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--libcuda", default=LIBRARY)
    parser.add_argument("--huge", action="store_true")
    arguments = parser.parse_args()
    os.environ["PARK_PATHS_LIBCUDA"] = globals()["LIBRARY"] = arguments.libcuda
    driver, count = Driver(), int(arguments.gib * GIB)
    with open(HUGE) as file:
        print("transparent huge pages: " + file.read().strip())
    host_memory(driver, count // 2)
    copies(driver, count // 2)
    right = all_checkpoints(driver, count, arguments.huge)
    print(f"\n| pieces of MiB, {count / GIB:g} GiB | | copy out s | release s | create s | map s | copy back s | "
          "GB/s out, back | contents |\n|---|---|---|---|---|---|---|---|---|")
    for piece in (2, 64, 1024):
        if piece * MIB <= count:
            right = handles(driver, count, piece * MIB) and right
    sys.exit(not right)


if __name__ == "__main__":
    hold(int(sys.argv[2])) if sys.argv[1:2] == ["hold"] else main()
