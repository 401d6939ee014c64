#!/usr/bin/env python3
"""Clients whose bytes change on their way to the worker. A session may end in any way, but its worker does not crash.

    mutated_test.py --build FOLDER --programs FOLDER [unittest arguments]

RCUDA_TEST_MUTATED is the number of sessions, RCUDA_TEST_SEED the first of their seeds. With many sessions and a build
with AddressSanitizer this is a fuzzer of the whole worker.
"""

import os
import random
import subprocess
import threading
import unittest

from proxy import Proxy
from servers import client_environment, run_tests, Server

BUILD = PROGRAMS = None
SESSIONS = int(os.environ.get("RCUDA_TEST_MUTATED", "30"))
SEED = int(os.environ.get("RCUDA_TEST_SEED", "1"))
USED = ("batch_operations", "copies", "graphs_by_hand", "host_callbacks", "host_memory", "managed_memory", "parameters",
        "stream_ordered_memory", "streams_and_events", "symbols", "textures", "virtual_memory", "zero_copy")
# After this time a session is ended: with a wrong length, both ends wait for bytes that nobody sends.
MOST_SECONDS = 3
HELLO_BYTES = 900  # the bytes after these go to the worker
FIELDS = (0, 1, 4096, 0x7fffffff, 0xffffffff, 1 << 63, (1 << 64) - 1)


class Mutator(Proxy):
    def __init__(self, port, chance):
        self.chance = chance
        self.lock = threading.Lock()  # a session has several connections, each with a thread
        super().__init__(port)

    def places(self):
        """Where bytes of a connection change: near its begin, or far from it."""
        with self.lock:
            most = self.chance.choice((1500, 6000, 20000, 100000))
            return sorted(HELLO_BYTES + self.chance.randrange(most) for _ in range(self.chance.randint(1, 8)))

    def change(self, data, at):
        with self.lock:
            kind = self.chance.randrange(4)
            if kind == 0:
                data[at] ^= 1 << self.chance.randrange(8)
            elif kind == 1:
                data[at] = self.chance.randrange(256)
            else:  # a whole field
                size = 8 if kind == 2 else 4
                value = self.chance.choice((*FIELDS, self.chance.getrandbits(47) & ~255, self.chance.getrandbits(8)))
                at -= at % size
                data[at:at + size] = value.to_bytes(8, "little")[:min(size, len(data) - at)]

    def forward(self, source, sink):
        if source.getpeername()[1] == self.target[1]:
            return super().forward(source, sink)
        passed, places = 0, self.places()
        try:
            while data := bytearray(source.recv(1 << 16)):
                while places and places[0] < passed + len(data):
                    self.change(data, max(0, places.pop(0) - passed))
                passed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(2)
            except OSError:
                pass
        return None


class MutatedTest(unittest.TestCase):
    def run_program(self, name, address, server):
        environment = client_environment(BUILD, [server], "tcp", RCUDA_LOG="off", RCUDA_SECURITY="none")
        environment["RCUDA_DEVICES"] = address
        try:
            return subprocess.run([os.path.join(PROGRAMS, name)], env=environment, timeout=MOST_SECONDS,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            return None

    def test_no_worker_crashes(self):
        server = Server(BUILD, options=["--insecure", "--pool", "3"])
        self.addCleanup(server.stop)
        failed = 0
        for session in range(SEED, SEED + SESSIONS):
            proxy = Mutator(server.port, random.Random(session))
            failed += self.run_program(USED[session % len(USED)], proxy.address(), server) != 0
            proxy.close()
            self.assertNotIn("with signal", server.text(), f"RCUDA_TEST_SEED={session}\n" + server.sanitizers())
        # Enough changes were in bytes that workers check.
        self.assertGreater(failed, SESSIONS // 3)
        self.assertEqual(subprocess.run([os.path.join(PROGRAMS, "vector_add")], stdout=subprocess.DEVNULL,
                                        env=client_environment(BUILD, [server], "tcp")).returncode, 0, server.text())
        self.assertEqual(server.stop(), 0, server.text())


if __name__ == "__main__":
    run_tests(globals(), "programs")
