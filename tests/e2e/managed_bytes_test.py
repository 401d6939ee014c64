#!/usr/bin/env python3
"""Only changed bytes of managed memory travel between client and worker.

    managed_bytes_test.py --build FOLDER [unittest arguments]
"""

import os
import subprocess
import tempfile
import unittest

from servers import audit_lines, Server, client_environment, load_trace, run_tests

BUILD = None
ALL = 16 << 20
# The limit for all other bytes: five rounds of commands, and unchanged pages that share a block with changed pages.
LITTLE = 1 << 20


class ManagedBytesTest(unittest.TestCase):
    def run_program(self, way, mode, **more):
        """What the program prints, and how many bytes its worker has copied."""
        audit = tempfile.NamedTemporaryFile()
        self.addCleanup(audit.close)
        server = Server(BUILD, environment=dict(RCUDA_SERVER_AUDIT=audit.name))
        environment = client_environment(BUILD, [server], "tcp", RCUDA_MANAGED=mode, **more)
        program = os.path.join(BUILD, "tests/e2e/managed_bytes")
        result = subprocess.run([program, way], env=environment, capture_output=True, text=True, timeout=100)
        self.assertEqual(server.stop(), 0)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        ended, = audit_lines(audit.name, "session")
        return result.stdout, sum(value for name, value in ended.items() if name.startswith("bytes_"))

    def travelled(self, way, mode=""):
        return self.run_program(way, mode)[1]

    def test_a_large_fetch_leaves_no_memory_behind_for_ever(self):
        for mode in ("tracked", "compared"):
            with self.subTest(mode):
                self.assertLess(int(self.run_program("memory", mode)[0]), ALL // 2)

    def test_what_the_device_reads_does_not_come_back(self):
        for mode in ("tracked", "compared"):
            with self.subTest(mode):
                self.assertLess(self.travelled("reads", mode), ALL + LITTLE)

    def test_a_word_costs_a_block(self):
        for mode in ("tracked", "compared"):
            with self.subTest(mode):
                self.assertLess(self.travelled("word", mode), ALL + LITTLE)

    def test_all_comes_back_once_a_round(self):
        for mode in ("tracked", "compared"):
            with self.subTest(mode):
                self.assertLess(self.travelled("all", mode), 6 * ALL + LITTLE)

    def test_a_free_waits_once_unless_a_host_function_may_be_due(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            self.run_program("frees", "", RCUDA_TRACE=trace)
            slices = [event for event in load_trace(trace) if event["ph"] == "X"]
        frees = [event for event in slices if event["name"] == "cuMemFree_v2" and event["cat"] == "api"]
        commands = [[event["name"].split()[1] for event in slices
                     if event["cat"] in ("call", "post") and event["tid"] == free["tid"]
                     and free["ts"] <= event["ts"] < free["ts"] + free["dur"]] for free in frees]
        self.assertEqual(["SynchronizeContext" in sent for sent in commands], [False] * 3 + [True] * 3)


if __name__ == "__main__":
    run_tests(globals())
