#!/usr/bin/env python3
"""Servers and programs that start as under cron, pdsh and Slurm: without standard descriptors, without a limit on the
stack, with other layouts of addresses.

    surroundings_test.py --build FOLDER --programs FOLDER [unittest arguments]

RCUDA_TEST_DRIVER=nvidia uses a GPU.
"""

import os
import subprocess
import unittest

from servers import client_environment, run_tests, Server

BUILD = PROGRAMS = None
DRIVER = os.environ.get("RCUDA_TEST_DRIVER", "softgpu")
EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/expected")
UNLIMITED_STACK = ("sh", "-c", 'ulimit -s unlimited && exec "$@"', "sh")
CLOSED = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
READER_GONE = ("bash", "-c", 'exec "$@" > >(true) 2>&1', "bash")
FEW_ADDRESSES = ("sh", "-c", 'ulimit -v 8388608 && exec "$@"', "sh")
LEGACY, FIXED = ("setarch", "-L"), ("setarch", "-R")


class SurroundingsTest(unittest.TestCase):
    def server(self, wrapper):
        server = Server(BUILD, driver=DRIVER, wrapper=wrapper)
        self.addCleanup(server.stop)
        return server

    def check(self, server, program="vector_add", wrapper=()):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport, wrapper=wrapper):
                result = subprocess.run([*wrapper, os.path.join(PROGRAMS, program)], capture_output=True, text=True,
                                        timeout=120, env=client_environment(BUILD, [server], transport))
                self.assertEqual((result.returncode, result.stderr), (0, ""), server.text())
                with open(os.path.join(EXPECTED, f"{program}.txt")) as expected:
                    self.assertEqual(result.stdout, expected.read())
        self.assertNotIn("outside of", server.text())

    def test_without_a_limit_on_the_stack(self):
        server = self.server(UNLIMITED_STACK)
        for wrapper in ((), UNLIMITED_STACK, LEGACY, FIXED, FEW_ADDRESSES):
            self.check(server, "virtual_memory", wrapper)

    def test_with_other_layouts_of_addresses(self):
        for wrapper in (LEGACY, FIXED):
            self.check(self.server(wrapper), "virtual_memory", wrapper)

    def test_without_standard_descriptors(self):
        for wrapper in (CLOSED, READER_GONE):
            server = self.server(wrapper)
            self.check(server, "device_printf")
            self.assertEqual(server.text(), "")


if __name__ == "__main__":
    run_tests(globals(), "programs")
