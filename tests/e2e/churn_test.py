#!/usr/bin/env python3
"""Clients that come and go: killed at random points, and many at once. Afterwards the server holds what
it held before.

    churn_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import random
import subprocess
import time
import unittest

import servers
from servers import client_environment, eventually, run_tests, Server

BUILD = PROGRAMS = None
POOL = 2
KILLS = 100
CLIENTS = 64
# A kill comes at any time from before the client's first instruction to long after its program is under
# way: what endless needs from its start to its second round on a fast machine.
LATEST_KILL_SECONDS = 0.25
# What the daemon's own memory may differ by. It has no reason to grow with the sessions it has had; what
# the allocator keeps in pieces, and pages that code and libraries touched for the first time, comes
# to some hundred kilobytes. A leak of a session's Hello and buffers, some 10 KB, would be a megabyte.
SLACK_BYTES = 768 << 10


class Holdings:
    """What a server and its clients may leave behind."""

    def __init__(self, server):
        server.settle()
        self.descriptors = server.descriptors()
        self.workers = len(server.workers())
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.resident_bytes = server.resident_bytes()


class ChurnTest(unittest.TestCase):
    def setUp(self):
        self.server = Server(BUILD, options=["--pool", str(POOL)])

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, self.server.text())

    def run_to_end(self, transport):
        result = subprocess.run([os.path.join(PROGRAMS, "vector_add")], capture_output=True, text=True,
                                env=client_environment(BUILD, [self.server], transport))
        self.assertEqual(result.returncode, 0, result.stderr + self.server.text())
        return result.stdout

    def settled(self):
        """Whether all sessions are over and the pool is full again."""
        return (not self.server.sessions(BUILD) and len(self.server.workers()) == POOL)

    def check_held(self, before):
        self.assertTrue(eventually(self.settled), self.server.text())
        # The daemon hears of the last worker's end before it has closed what was that worker's.
        self.assertTrue(eventually(lambda: self.server.descriptors() == before.descriptors),
                        f"{before.descriptors} -> {self.server.descriptors()} descriptors")
        # Other tests may have segments of their own there for a while.
        self.assertTrue(eventually(lambda: set(os.listdir("/dev/shm")) <= before.shared_memory))
        after = Holdings(self.server)
        self.assertEqual(after.workers, before.workers)
        # A sanitizer's own memory (shadow, quarantine) grows with what was ever touched. There
        # AddressSanitizer's leak check at the server's end tells.
        if not servers.PRELOAD:
            self.assertLess(after.resident_bytes, before.resident_bytes + SLACK_BYTES)

    def warm_up(self, transport):
        # Ordinary sessions, so that what is made once is made.
        for _ in range(4):
            self.run_to_end(transport)
        self.assertTrue(eventually(self.settled))
        return Holdings(self.server)

    def check_kills(self, transport):
        before = self.warm_up(transport)
        chance = random.Random(5)
        environment = client_environment(BUILD, [self.server], transport)
        for _ in range(KILLS):
            client = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0, LATEST_KILL_SECONDS))
            self.assertIsNone(client.poll(), "a client ended by itself\n" + self.server.text())
            client.kill()
            client.wait()
        self.check_held(before)
        # Some were killed before their session began, others in it.
        self.assertIn("over after", self.server.text())
        self.run_to_end(transport)

    def test_killed_clients_shm(self):
        self.check_kills("shm")

    def test_killed_clients_tcp(self):
        self.check_kills("tcp")

    def check_many(self, transport):
        before = self.warm_up(transport)
        expected = self.run_to_end(transport)
        environment = client_environment(BUILD, [self.server], transport)
        clients = [subprocess.Popen([os.path.join(PROGRAMS, "vector_add")], env=environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for _ in range(CLIENTS)]
        for client in clients:
            out, err = client.communicate()
            self.assertEqual((client.returncode, out), (0, expected), err + self.server.text())
        self.check_held(before)

    def test_many_at_once_shm(self):
        self.check_many("shm")

    def test_many_at_once_tcp(self):
        self.check_many("tcp")


if __name__ == "__main__":
    run_tests(globals(), "programs")
