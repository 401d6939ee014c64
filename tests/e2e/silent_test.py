#!/usr/bin/env python3
"""More silent connections than a server keeps. The server still serves programs.

    silent_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import socket
import subprocess
import unittest

from servers import (client_environment, fetch_ticket, local_connection, message, read_message, run_tests,
                     Server)

BUILD = PROGRAMS = None
SILENT = 600
# A quarter of the server's descriptors are for connections that have not introduced themselves yet.
KEEPS_512 = ("sh", "-c", 'ulimit -n 2048 && exec "$@"', "sh")
HELLO, REFUSAL, STATUS_QUERY, STATUS = 1, 4, 5, 6


def connect_tcp(server):
    return socket.create_connection(("127.0.0.1", int(server.port)), timeout=60)


class SilentTest(unittest.TestCase):
    def server(self, wrapper=KEEPS_512):
        """Starts a server. Its handshake timeout is longer than the test, so silent connections do
        not time out."""
        server = Server(BUILD, environment={"RCUDA_SERVER_HANDSHAKE_TIMEOUT": "120s"}, wrapper=wrapper)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def check_serves(self, server):
        smi = [os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1@{server.port}"]
        program = [os.path.join(PROGRAMS, "vector_add")]
        for command, environment in ((program, client_environment(BUILD, [server], "shm")),
                                     (program, client_environment(BUILD, [server], "tcp")),
                                     (smi, None)):
            result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            self.assertEqual(result.returncode, 0, result.stderr + server.text())

    def check_silent(self, connect, **more):
        server = self.server(**more)
        silent = [self.silent(connect, server) for _ in range(SILENT)]
        self.check_serves(server)
        # Some connections close while others open.
        for connection in silent[:SILENT // 2]:
            connection.close()
        for _ in range(SILENT):
            self.silent(connect, server)
        self.check_serves(server)
        self.assertIn("have sent no request yet", server.text())

    def silent(self, connect, server):
        connection = connect(server)
        self.addCleanup(connection.close)
        return connection

    def test_local(self):
        self.check_silent(lambda server: local_connection(server.port))

    def test_tcp(self):
        self.check_silent(connect_tcp)

    def test_a_server_with_few_descriptors(self):
        self.check_silent(connect_tcp, wrapper=["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh"])

    def test_tcp_from_many_addresses(self):
        numbers = iter(range(2, 1 << 16))

        def connect(server):
            number = next(numbers)
            return socket.create_connection(("127.0.0.1", int(server.port)),
                                            source_address=(f"127.1.{number >> 8}.{number & 255}", 0))
        self.check_silent(connect)

    def test_others_go_before_the_only_one_of_its_origin(self):
        server = self.server()
        early = self.silent(lambda server: local_connection(server.port), server)
        silent = [self.silent(connect_tcp, server) for _ in range(SILENT)]
        self.check_serves(server)
        early.sendall(message(STATUS_QUERY))
        self.assertEqual(read_message(early)[0], STATUS)
        # The oldest of the silent connections is closed, with the reason.
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
