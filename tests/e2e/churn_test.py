#!/usr/bin/env python3
"""Clients that come and go: killed at random points, and many at once. Afterwards the server holds
the same resources as before.

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
TOGETHER = 2  # how many clients are killed at a time
CLIENTS = 64
# A client is killed at a random time: before its first instruction, in its program, or in between.
# The limit is the time in which endless gets to its second round on a fast machine.
LATEST_KILL_SECONDS = 0.25
# The allowed growth of the daemon's own memory. The daemon has no reason to grow with the number of
# past sessions. Free blocks of the allocator, and pages that code and libraries use for the first
# time, amount to some hundred kilobytes. A leak of the Hello and the buffers of each session, some
# 10 KB, would amount to a megabyte.
SLACK_BYTES = 768 << 10


class Holdings:
    """Resources that a server and its clients may leave behind."""

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
        # The daemon is notified of the last worker's end before it has closed that worker's
        # descriptors.
        self.assertTrue(eventually(lambda: self.server.descriptors() == before.descriptors),
                        f"{before.descriptors} -> {self.server.descriptors()} descriptors")
        # Other tests may have segments there for a while.
        self.assertTrue(eventually(lambda: set(os.listdir("/dev/shm")) <= before.shared_memory))
        after = Holdings(self.server)
        self.assertEqual(after.workers, before.workers)
        # The sanitizer's own memory (shadow, quarantine) grows with the memory ever touched.
        # AddressSanitizer's leak check at the server's end finds leaks instead.
        if not servers.PRELOAD:
            self.assertLess(after.resident_bytes, before.resident_bytes + SLACK_BYTES)

    def warm_up(self, transport):
        # Runs ordinary sessions, so that everything that a server makes only once exists afterwards.
        for _ in range(4):
            self.run_to_end(transport)
        self.assertTrue(eventually(self.settled))
        return Holdings(self.server)

    def check_kills(self, transport):
        before = self.warm_up(transport)
        chance = random.Random(5)
        environment = client_environment(BUILD, [self.server], transport)
        for _ in range(KILLS // TOGETHER):
            clients = [subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                       for _ in range(TOGETHER)]
            for client in clients:
                time.sleep(chance.uniform(0, LATEST_KILL_SECONDS))
                self.assertIsNone(client.poll(), "a client ended by itself\n" + self.server.text())
                client.kill()
                client.wait()
        self.check_held(before)
        # Some clients were killed before their session began, others during it.
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
