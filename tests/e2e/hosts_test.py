#!/usr/bin/env python3
"""Unusual host programs: built with sanitizers, with few resources, without standard descriptors,
ending while their threads are busy.

    hosts_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import subprocess
import unittest

from servers import client_environment, run_tests, Server

BUILD = PROGRAMS = None
MEMORY = "copies\npage-locked\nregistered\nmanaged\n"


class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(BUILD)

    @classmethod
    def tearDownClass(cls):
        outcome = cls.server.stop()
        assert outcome == 0, outcome

    def run_host(self, transport, program, *arguments, wrapper=(), preloaded=True):
        environment = client_environment(BUILD, [self.server], transport)
        if not preloaded:
            del environment["LD_PRELOAD"]
        return subprocess.run([*wrapper, program, *arguments], env=environment, capture_output=True, text=True,
                              timeout=120)

    def check(self, result, returncode, output, errors=""):
        self.assertEqual((result.returncode, result.stdout), (returncode, output), result.stderr)
        self.assertIn(errors, result.stderr)
        if not errors:
            self.assertEqual(result.stderr, "")

    def own(self, name):
        return os.path.join(BUILD, "tests/e2e", name)

    def test_descriptors_stay_away_from_the_standard_ones(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                result = self.run_host(transport, os.path.join(PROGRAMS, "odd_hosts"), "strict")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("\ndescriptors\n", result.stdout)

    def test_sanitizers_that_work(self):
        run = os.path.join(BUILD, "bin/rcuda-run")
        for transport in ("shm", "tcp"):
            for name in ("address", "leak", "undefined"):
                with self.subTest(transport, sanitizer=name):
                    program = self.own(f"rcuda_sanitized_{name}")
                    self.check(self.run_host(transport, program), 0, MEMORY)
                    self.check(self.run_host(transport, run, "--", program, preloaded=False), 0, MEMORY)
        result = self.run_host("shm", self.own("rcuda_sanitized_address"), "overflow")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("heap-buffer-overflow", result.stderr)

    def test_sanitizers_that_do_not(self):
        result = self.run_host("shm", self.own("rcuda_sanitized_thread"))
        self.assertEqual(result.returncode, 3)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), 2, result.stderr)
        self.assertIn("built with ThreadSanitizer", lines[0])

    def test_a_limit_on_files(self):
        limited = ("sh", "-c", 'ulimit -f 200 && exec "$@"', "sh")
        for transport in ("shm", "tcp"):
            for program in ("host_memory", "managed_memory"):
                with self.subTest(transport, program=program):
                    result = self.run_host(transport, os.path.join(PROGRAMS, program), wrapper=limited)
                    self.assertEqual(result.returncode, 0, result.stderr)

    def test_ends_while_threads_are_busy(self):
        ends = {"return": 4, "exit": 5, "_exit": 6, "quick_exit": 7, "thread": 8}
        for transport in ("shm", "tcp"):
            for how, status in ends.items():
                with self.subTest(transport, how=how):
                    self.check(self.run_host(transport, self.own("rcuda_busy_exit"), how), status, "")


if __name__ == "__main__":
    run_tests(globals(), "programs")
