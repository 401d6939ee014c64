#!/usr/bin/env python3
"""A program that gets no device prints the reason in one line, before its framework's error: runs tests/gpu/no_device.py
with a plain program and with CuPy. Further causes: limits of the process, and a server that refuses the session.

    no_device_test.py --build FOLDER --wheels FOLDER [unittest arguments]
"""

import os
import resource
import sys
import unittest

GPU_TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../gpu")
sys.path.insert(0, GPU_TESTS)

import no_device  # noqa: E402
from no_device import CAUSES, Cause, FIRST  # noqa: E402
from servers import run_tests, Server  # noqa: E402

BUILD = WHEELS = None


class NoDeviceTest(unittest.TestCase):
    def check(self, program, cause, first="nothing", python=sys.executable):
        problem, text = no_device.run(BUILD, program, first, cause, python)
        self.assertEqual(problem, "", text)

    def test_causes(self):
        for name, cause in CAUSES.items():
            with self.subTest(cause=name):
                self.check("plain", cause)

    def test_once(self):
        for name in ("no list", "nothing listens"):
            for first in FIRST:
                with self.subTest(cause=name, first=first):
                    self.check("plain", CAUSES[name], first)

    def test_cupy(self):
        python = os.path.join(WHEELS, "bin/python")
        if not os.path.exists(python):
            self.skipTest("the wheels of CuPy are not installed")
        self.check("cupy", CAUSES["no list"], "fork", python)
        self.check("cupy", CAUSES["nothing listens"], "nvml", python)

    def test_a_server_that_refuses(self):
        server = Server(BUILD, devices="0")
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        address = f"127.0.0.1@{server.port}:3"
        self.check("plain", Cause(f"127.0.0.1:{server.port}", "does not offer device 3", "it offers 0", devices=address),
                   "nvml")

    def test_limits_of_the_program(self):
        server = Server(BUILD)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        for transport, limit, value, word in (("shm", resource.RLIMIT_NOFILE, 6, "ulimit -n"),
                                              ("tcp", resource.RLIMIT_NOFILE, 6, "ulimit -n"),
                                              ("shm", resource.RLIMIT_AS, 200 << 20, "ulimit -v"),
                                              ("tcp", resource.RLIMIT_AS, 200 << 20, "ulimit -v")):
            with self.subTest(transport=transport, word=word):
                self.check("plain", Cause(word, devices=server.address(), limits=[(limit, value)],
                                          RCUDA_TRANSPORT=transport))


if __name__ == "__main__":
    run_tests(globals(), "wheels")
