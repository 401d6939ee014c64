#!/usr/bin/env python3
"""Order: a program that fails if any two dependent commands change places runs a thousand rounds
over each medium. The Links of both sides add random delays (tests/support/late_media.h).

    order_test.py --build FOLDER --softgpu LIBRARY [unittest arguments]
"""

import os
import subprocess
import unittest

from servers import client_environment, run_tests, Server

BUILD = SOFTGPU = None
PROCESSES, ROUNDS = 4, 250  # a thousand rounds, in sessions with other delays


class OrderTest(unittest.TestCase):
    def run_rounds(self, transport, rounds, seed, *more):
        delays = {"RCUDA_TEST_DELAYS": str(seed)}
        server = Server(BUILD, driver=SOFTGPU, environment=delays,
                        binary="tests/e2e/rcuda-server-delayed")
        try:
            environment = client_environment(BUILD, [server], transport,
                                             "tests/e2e/librcuda-delayed.so", RCUDA_LOG="info",
                                             **delays)
            result = subprocess.run(
                [os.path.join(BUILD, "tests/e2e/ordering_rounds"), str(rounds), str(seed), *more],
                env=environment, capture_output=True, text=True)
        finally:
            outcome = server.stop()
        self.assertEqual(outcome, 0, server.text())
        # Both sides must have had delays.
        for log in (result.stderr, server.text()):
            self.assertIn(f"simulated delays in the Link over {transport}", log)
        return result

    def check(self, transport):
        for process in range(PROCESSES):
            seed = 1 + process * ROUNDS
            result = self.run_rounds(transport, ROUNDS, seed)
            self.assertEqual(result.stdout, f"{ROUNDS} rounds\n", result.stderr)
            self.assertEqual(result.returncode, 0)

    def test_shared_memory(self):
        self.check("late-shm")

    def test_tcp(self):
        self.check("late-tcp")

    def test_swapped_commands_are_found(self):
        result = self.run_rounds("late-shm", ROUNDS, 1, "swap")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, "round [0-9]+: wrong")


if __name__ == "__main__":
    run_tests(globals(), "softgpu")
