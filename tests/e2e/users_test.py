#!/usr/bin/env python3
"""Whom a server of this machine serves: its own user and root, whatever the transport. Another user gets
one clear line, and no device.

    users_test.py --build FOLDER --programs FOLDER [unittest arguments]

Exits with 77 where it cannot be another user: it needs to be root, and a build that others can read.
"""

import os
import subprocess
import unittest

from servers import client_environment, local_connection, read_message, run_tests, Server

BUILD = PROGRAMS = None
NOBODY = 65534
OTHER = 65533
REFUSAL = 4


def run_as(user, command, **more):
    return subprocess.run(command, capture_output=True, timeout=120, cwd="/", user=user, group=user,
                          extra_groups=[], **more)


class UsersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("skipped: only root can be another user")
            raise SystemExit(77)
        library = os.path.join(BUILD, "lib/librcuda.so")
        if run_as(NOBODY, ["cat", library]).returncode != 0:
            print("skipped: the build folder is closed to other users")
            raise SystemExit(77)

    def server(self, **more):
        server = Server(BUILD, **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def run_program(self, server, transport, user):
        return run_as(user, [os.path.join(PROGRAMS, "vector_add")], text=True,
                      env=client_environment(BUILD, [server], transport))

    def check_served(self, server, user):
        for transport in ("auto", "shm", "tcp"):
            result = self.run_program(server, transport, user)
            self.assertEqual(result.returncode, 0, (transport, result.stderr, server.text()))

    def smi(self, server, user):
        return run_as(user, [os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1@{server.port}"], text=True)

    def check_refused(self, server, server_user, user):
        texts = (f"uid {server_user} ", f"not uid {user}", "run the program as that user",
                 "rcuda-server --port", server.port)
        for transport in ("auto", "shm", "tcp"):
            result = self.run_program(server, transport, user)
            self.assertEqual(result.returncode, 1, transport)
            self.assertIn("cudaErrorNoDevice", result.stderr)
            lines = [line for line in result.stderr.splitlines() if "rcuda[" in line]
            self.assertEqual(len(lines), 1, result.stderr)
            for text in texts:
                self.assertIn(text, lines[0])
        asked = self.smi(server, user)
        self.assertEqual(asked.returncode, 1)
        for text in texts:
            self.assertIn(text, asked.stderr)

    def test_another_user_of_roots_server(self):
        server = self.server()
        self.check_refused(server, 0, NOBODY)
        self.check_served(server, 0)
        self.assertEqual(self.smi(server, 0).returncode, 0)

    def test_a_server_of_a_user_of_its_own(self):
        server = self.server(user=NOBODY)
        self.check_refused(server, NOBODY, OTHER)
        self.check_served(server, NOBODY)
        self.check_served(server, 0)
        self.assertEqual(self.smi(server, NOBODY).returncode, 0)

    def test_the_daemon_turns_another_user_away_itself(self):
        """Whatever the client checks: this one checks nothing."""
        server = self.server()
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                os.write(write_end, repr(read_message(local_connection(server.port))).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        os.waitpid(child, 0)
        with os.fdopen(read_end) as answer:
            answer = answer.read()
        self.assertIn(f"({REFUSAL}, ", answer)
        for text in ("runs as uid 0", f"not uid {NOBODY}", "run the program as that user"):
            self.assertIn(text, answer)
        self.assertIn(f"of uid {NOBODY} refused", server.text())

    def test_copies_between_servers_of_two_users(self):
        servers = [self.server(index=0), self.server(index=1, user=NOBODY)]
        for order in (servers, servers[::-1]):
            result = run_as(0, [os.path.join(PROGRAMS, "peer_copies")], text=True,
                            env=client_environment(BUILD, order))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("will fail", result.stderr)


if __name__ == "__main__":
    run_tests(globals(), "programs")
