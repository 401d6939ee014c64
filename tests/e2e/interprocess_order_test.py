#!/usr/bin/env python3
"""A process that shares memory with another process sees the work of that process's streams in order, as on one GPU.

    interprocess_order_test.py --build FOLDER [unittest arguments]

In one stream, the sender copies a value to its page-locked memory and then sets a flag in memory that the
receiver has opened. When the receiver sees the flag, the sender must have the value, although the network
between the sender and its server delays everything by 300 ms.
"""

import ctypes
import os
import subprocess
import sys
import unittest

from servers import client_environment, run_tests

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../bench/network"))
from network import Network  # noqa: E402
from round_trips import Driver  # noqa: E402

BUILD = None


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]


def start():
    driver = Driver()
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.make("cuDevicePrimaryCtxRetain", 0))
    return driver


def send():
    driver = start()
    stream, flag, value = driver.make("cuStreamCreate", 1), driver.make("cuMemAlloc_v2", 4), driver.make(
        "cuMemAlloc_v2", 4)
    driver.cuMemsetD32_v2(flag, 0, 1)
    driver.cuMemsetD32_v2(value, 42, 1)
    memory = ctypes.c_int.from_address(driver.make("cuMemHostAlloc", 4, 0))
    memory.value = 0
    handle = IpcHandle()
    driver.cuIpcGetMemHandle(ctypes.byref(handle), flag)
    print(bytes(handle).hex(), flush=True)
    sys.stdin.readline()  # the receiver has opened it
    driver.cuMemcpyDtoHAsync_v2(ctypes.addressof(memory), value, 4, stream)
    driver.cuMemsetD32Async(flag, 1, 1, stream)
    sys.stdin.readline()  # the receiver has seen the flag
    print(memory.value, flush=True)
    driver.cuStreamSynchronize(stream)


def receive():
    driver = start()
    flag = ctypes.c_uint64()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(sys.stdin.readline()))
    driver.cuIpcOpenMemHandle_v2(ctypes.byref(flag), handle, 1)
    print("opened", flush=True)
    seen = ctypes.c_int(0)
    while seen.value == 0:
        driver.cuMemcpyDtoH_v2(ctypes.addressof(seen), flag.value, 4)
    print("seen", flush=True)


class InterprocessOrderTest(unittest.TestCase):
    def setUp(self):
        self.network = Network(BUILD, "softgpu")
        self.addCleanup(self.network.stop)

    def process(self, role, environment):
        process = subprocess.Popen([sys.executable, __file__, role], env=environment, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 60)
        self.addCleanup(process.stdin.close)
        return process

    def test_memory_tells_of_a_copy_to_the_host(self):
        libraries = {"LD_LIBRARY_PATH": os.path.join(BUILD, "lib/rcuda")}
        sender = self.process("send", dict(self.network.environment(300_000), **libraries))
        receiver = self.process("receive", client_environment(
            BUILD, [self.network.server], "tcp", RCUDA_SECURITY="none"))
        receiver.stdin.write(sender.stdout.readline())
        receiver.stdin.flush()
        for _ in ("opened", "seen"):
            self.assertIn(receiver.stdout.readline().strip(), ("opened", "seen"))
            sender.stdin.write("go on\n")
            sender.stdin.flush()
        self.assertEqual(sender.stdout.readline().strip(), "42")


if __name__ == "__main__":
    if sys.argv[1:] == ["send"]:
        send()
    elif sys.argv[1:] == ["receive"]:
        receive()
    else:
        run_tests(globals())
