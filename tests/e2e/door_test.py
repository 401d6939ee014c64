#!/usr/bin/env python3
"""Whom a server of this machine serves: its own user and root, whatever the transport, and whoever else
connects and says nothing.

    door_test.py --build FOLDER --programs FOLDER [unittest arguments]

UsersTest needs to be root, and a build that other users can read; exits with 77 where it cannot be.
"""

import os
import socket
import subprocess
import unittest

from servers import (client_environment, fetch_ticket, local_connection, message, read_message, run_tests,
                     Server)

BUILD = PROGRAMS = None
NOBODY = 65534
OTHER = 65533
SILENT = 600
HELLO, REFUSAL, STATUS_QUERY, STATUS = 1, 4, 5, 6


def connect_tcp(server):
    return socket.create_connection(("127.0.0.1", int(server.port)), timeout=60)


def run_as(user, command, **more):
    identity = {} if user == os.geteuid() else dict(user=user, group=user, extra_groups=[])
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", **identity, **more)


class Case(unittest.TestCase):
    def server(self, **more):
        server = Server(BUILD, **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def run_program(self, server, transport, user):
        return run_as(user, [os.path.join(PROGRAMS, "vector_add")],
                      env=client_environment(BUILD, [server], transport, USER="somebody"))

    def check_served(self, server, user, transports=("auto", "shm", "tcp")):
        for transport in transports:
            result = self.run_program(server, transport, user)
            self.assertEqual(result.returncode, 0, (transport, result.stderr, server.text()))

    def smi(self, server, user):
        return run_as(user, [os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1@{server.port}"])


class UsersTest(Case):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("skipped: only root can be another user")
            raise SystemExit(77)
        library = os.path.join(BUILD, "lib/librcuda.so")
        if run_as(NOBODY, ["cat", library], errors="replace").returncode != 0:
            print("skipped: the build folder is closed to other users")
            raise SystemExit(77)

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
            result = run_as(0, [os.path.join(PROGRAMS, "peer_copies")],
                            env=client_environment(BUILD, order))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("will fail", result.stderr)


class SilentTest(Case):
    """More connections that say nothing than a server keeps, and while they last."""

    def check_serves(self, server):
        self.check_served(server, os.geteuid(), ("shm", "tcp"))
        asked = self.smi(server, os.geteuid())
        self.assertEqual(asked.returncode, 0, asked.stderr)

    def check_silent(self, connect):
        server = self.server(RCUDA_SERVER_HANDSHAKE_TIMEOUT="120s")
        silent = [self.silent(connect, server) for _ in range(SILENT)]
        self.check_serves(server)
        # Some go, as others come.
        for connection in silent[:SILENT // 2]:
            connection.close()
        for _ in range(SILENT):
            self.silent(connect, server)
        self.check_serves(server)
        self.assertIn("have not introduced themselves", server.text())

    def silent(self, connect, server):
        connection = connect(server)
        self.addCleanup(connection.close)
        return connection

    def test_local(self):
        self.check_silent(lambda server: local_connection(server.port))

    def test_tcp(self):
        self.check_silent(connect_tcp)

    def test_tcp_from_many_addresses(self):
        numbers = iter(range(2, 1 << 16))

        def connect(server):
            number = next(numbers)
            return socket.create_connection(("127.0.0.1", int(server.port)),
                                            source_address=(f"127.1.{number >> 8}.{number & 255}", 0))
        self.check_silent(connect)

    def test_others_go_before_the_only_one_of_its_origin(self):
        server = self.server(RCUDA_SERVER_HANDSHAKE_TIMEOUT="120s")
        early = self.silent(lambda server: local_connection(server.port), server)
        silent = [self.silent(connect_tcp, server) for _ in range(SILENT)]
        self.check_serves(server)
        early.sendall(message(STATUS_QUERY))
        self.assertEqual(read_message(early)[0], STATUS)
        # The oldest of the others hears why.
        kind, body = read_message(silent[0])
        self.assertEqual(kind, REFUSAL)
        self.assertIn("try again", body)

    def test_half_an_introduction_is_none(self):
        def connect(server):
            connection = connect_tcp(server)
            connection.sendall(message(HELLO, b"x" * 100)[:-1])
            return connection
        self.check_silent(connect)

    def test_a_ticket_is_no_introduction(self):
        def connect(server):
            connection = connect_tcp(server)
            connection.sendall(fetch_ticket(connection))
            return connection
        self.check_silent(connect)


if __name__ == "__main__":
    run_tests(globals(), "programs")
