#!/usr/bin/env python3
"""Sessions that take as much as they can get of one resource. Other sessions must still get right results.

    floods_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import signal
import subprocess
import sys
import unittest

from servers import Server, client_environment, eventually, run_tests

BUILD = PROGRAMS = None

# Takes more and more of one resource. Prints a line when it has a lot or gets no more, and then holds what it has.
FLOOD = """
import ctypes, mmap, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t

def check(result, name):
    if result:
        raise RuntimeError(f"{name}: {result}")

def start():
    context = ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "retain")
    check(cuda.cuCtxSetCurrent(context), "set current")
    return context

def allocate(bytes):
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), size(bytes)), "cuMemAlloc")
    return address

def memory():
    while True:
        yield allocate(1 << 30)

def small_memory():
    for _ in range(4000):
        yield allocate(1)

def regions():
    pages = mmap.mmap(-1, 4096 * 1000)
    base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    for page in range(1000):
        check(cuda.cuMemHostRegister_v2(ctypes.c_void_p(base + 4096 * page), size(4096), 2), "register")
        yield pages

def page_locked():
    for _ in range(64):
        address = ctypes.c_void_p()
        check(cuda.cuMemHostAlloc(ctypes.byref(address), size(16 << 20), 0), "cuMemHostAlloc")
        yield address

def streams():
    for _ in range(1000):
        stream = ctypes.c_void_p()
        check(cuda.cuStreamCreate(ctypes.byref(stream), 1), "cuStreamCreate")
        yield stream

class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handle_type", ctypes.c_int), ("place", ctypes.c_int),
                ("device", ctypes.c_int), ("metadata", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]

def descriptors():
    properties = Properties(1, 1, 1, 0, None)
    for _ in range(2000):
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
        check(cuda.cuMemCreate(ctypes.byref(handle), size(2 << 20), ctypes.byref(properties),
                               ctypes.c_ulonglong(0)), "cuMemCreate")
        check(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1,
                                                ctypes.c_ulonglong(0)), "export")
        yield descriptor

def threads():
    held = threading.Event()
    for _ in range(200):
        def use():
            cuda.cuCtxSetCurrent(context)
            allocate(1)
            cuda.cuCtxSynchronize()
            held.wait()
        threading.Thread(target=use, daemon=True).start()
        yield held

# The test stops this process while its threads wait for answers.
def answers():
    address = allocate(4096)
    there = ctypes.create_string_buffer(4096)
    def ask():
        cuda.cuCtxSetCurrent(context)
        while True:
            cuda.cuMemcpyDtoH_v2(there, address, size(4096))
    for _ in range(16):
        threading.Thread(target=ask, daemon=True).start()
        yield address

context = start()
kept = []
try:
    for thing in globals()[sys.argv[1]]():
        kept.append(thing)
    print("enough", len(kept), flush=True)
except RuntimeError as error:
    print("no more", len(kept), error, flush=True)
sys.stdin.read()
"""


class FloodsTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(BUILD, options=["--pool", "2"])
        self.addCleanup(self.server.stop)
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                               "../programs/expected/matrix_product.txt")) as expected:
            self.expected = expected.read()

    def good_session(self, medium):
        result = subprocess.run([os.path.join(PROGRAMS, "matrix_product")], capture_output=True, text=True,
                                env=client_environment(BUILD, [self.server], medium), timeout=120)
        self.assertEqual((result.returncode, result.stdout), (0, self.expected), result.stderr)

    def flood(self, what, medium, stopped=False):
        with self.subTest(flood=what, medium=medium):
            process = subprocess.Popen([sys.executable, "-c", FLOOD, what], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                       env=client_environment(BUILD, [self.server], medium))
            self.good_session(medium)  # while it grows
            said = process.stdout.readline()
            self.assertRegex(said, "^(enough|no more) [1-9]", f"{what}: {self.server.text()[-2000:]}")
            if stopped:
                process.send_signal(signal.SIGSTOP)
            self.good_session(medium)  # while it holds everything
            process.kill()
            process.communicate()
            self.assertTrue(eventually(lambda: ", worker " not in self.server.status(BUILD)), self.server.text())
            self.good_session(medium)

    def test_over_shared_memory(self):
        for what in ("memory", "small_memory", "regions", "page_locked", "streams", "descriptors", "threads"):
            self.flood(what, "shm")

    def test_over_tcp(self):
        for what in ("memory", "regions", "page_locked", "descriptors", "threads"):
            self.flood(what, "tcp")

    def test_answers_that_nobody_reads(self):
        for medium in ("shm", "tcp"):
            self.flood("answers", medium, stopped=True)


if __name__ == "__main__":
    run_tests(globals(), "programs")
