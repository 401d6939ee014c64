#!/usr/bin/env python3
"""Unreachable servers: the client prints one clear line on stderr with the cause and the remedy,
the program sees no device, and nothing hangs.

    addresses_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import socket
import struct
import subprocess
import tempfile
import threading
import unittest

from servers import client_environment, run_tests, Server

BUILD = PROGRAMS = None
EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/expected")
# Twice the time limit of connecting and of the answer (session.h), for slow machines.
PATIENCE_SECONDS = 20
FINDS_PORT = 'port ("serving ... on")'


class Listener:
    """A listening program that is not an rcuda-server. Calls `answer` with each connection."""

    def __init__(self, answer):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.kept = []
        threading.Thread(target=self.serve, args=(answer,), daemon=True).start()

    def serve(self, answer):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.kept.append(connection)
            answer(connection)

    def close(self):
        self.socket.close()
        for connection in self.kept:
            connection.close()


class AddressesTest(unittest.TestCase):
    def check(self, devices, *expected, transport="tcp", **settings):
        environment = dict(client_environment(BUILD, [], transport), RCUDA_DEVICES=devices, **settings)
        if devices is None:
            del environment["RCUDA_DEVICES"]
        result = subprocess.run([os.path.join(PROGRAMS, "vector_add")], env=environment,
                                capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        self.assertEqual(result.returncode, 1)  # not a signal
        self.assertIn("cudaErrorNoDevice", result.stderr)
        lines = [line for line in result.stderr.splitlines() if "rcuda[" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        for text in expected:
            self.assertIn(text, lines[0])

    def check_impostor(self, port, plain, encrypted, *remedies):
        """Checks the messages about another program that listens where RCUDA_DEVICES names a server: for clients
        without security, with a token, and without credentials."""
        where = f"127.0.0.1:{port}"
        with tempfile.NamedTemporaryFile("w") as tokens:  # mode 600
            tokens.write(f"rcuda1.00000000.{43 * 'A'}.{43 * 'A'}\n")
            tokens.flush()
            self.check(f"127.0.0.1@{port}:0", where, plain, *remedies, FINDS_PORT, RCUDA_SECURITY="none")
            self.check(f"127.0.0.1@{port}:0", where, encrypted, FINDS_PORT, RCUDA_TOKEN_FILE=tokens.name)
        self.check(f"127.0.0.1@{port}:0", where, f"no rcuda-server of this machine has the port of {where} (ss -xl",
                   XDG_CONFIG_HOME="/nowhere", RCUDA_MUNGE_SOCKET="/nowhere")

    def listener(self, answer):
        listener = Listener(answer)
        self.addCleanup(listener.close)
        return listener.port

    def server(self, **more):
        server = Server(BUILD, **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def test_nothing_listens(self):
        free = socket.create_server(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        self.check(f"127.0.0.1@{port}:0", f"127.0.0.1:{port}", "start rcuda-server", FINDS_PORT)
        self.check(f"127.0.0.1@{port}:0", f"port {port}", "start one: rcuda-server", "ss -xl shows @rcuda-PORT",
                   transport="shm")

    def test_a_listener_that_never_answers(self):
        port = self.listener(lambda connection: None)
        self.check_impostor(port, "does not answer", "does not answer",
                            "Check host and port in RCUDA_DEVICES")

    def test_a_server_of_something_else(self):
        port = self.listener(lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"))
        self.check_impostor(port, "does not speak rcuda's protocol", "does not speak TLS",
                            "check host and port")

    def test_a_listener_that_hangs_up(self):
        port = self.listener(lambda connection: connection.close())
        self.check_impostor(port, "closed the connection", "closed the connection",
                            "Check host and port in RCUDA_DEVICES")

    def test_another_version(self):
        def answer(connection):
            magic, version, _, _ = struct.unpack("<4I", connection.recv(16, socket.MSG_WAITALL))
            connection.sendall(struct.pack("<4I", magic, version + 1, 4, 0))
        port = self.listener(answer)
        self.check(f"127.0.0.1@{port}:0", f"127.0.0.1:{port}", "protocol version",
                   "install the same release of rcuda on both", RCUDA_SECURITY="none")

    def test_an_unknown_host(self):
        self.check("no-such-host.invalid:0", "no-such-host.invalid", "check its name (in RCUDA_DEVICES")

    def test_a_host_that_is_not_there(self):
        # An address reserved for documentation; no host has it.
        self.check("192.0.2.1:0", "192.0.2.1:8308")

    def test_malformed_lists(self):
        for devices in ("127.0.0.1", "127.0.0.1:x", ":0", "127.0.0.1@0:0", ",", "127.0.0.1:0,,"):
            with self.subTest(devices=devices):
                self.check(devices, "RCUDA_DEVICES" if devices == "," else "")

    def test_no_list(self):
        self.check(None, "RCUDA_DEVICES")

    def test_a_device_that_the_server_does_not_offer(self):
        server = self.server(devices="0")
        self.check(f"127.0.0.1@{server.port}:7", "does not offer device 7", "it offers 0")

    def test_a_server_that_can_start_no_worker(self):
        # The server has not started a worker yet when the first program connects.
        server = self.server(driver="/nowhere/libcuda.so.1", options=["--pool", "0"])
        for transport in ("shm", "tcp"):
            self.check(server.address(), "the server cannot start a worker", "/nowhere/libcuda.so.1",
                       transport=transport)

    def test_too_many_sessions(self):
        server = self.server(options=["--max-sessions", "1"])
        first = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE,
                                 env=client_environment(BUILD, [server], "tcp"))
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        first.stdout.readline()
        self.check(server.address(), "all 1 sessions of the server are taken", "raise --max-sessions")

    def test_a_gpu_of_this_machine_beside_a_remote_one(self):
        here, there = self.server(index=0), self.server(index=1)
        pool = f"local@{here.port}:0,127.0.0.1@{there.port}:0"
        for program in ("several_devices", "peer_copies"):
            result = subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, timeout=120,
                                    env=dict(client_environment(BUILD, [], "tcp"), RCUDA_DEVICES=pool))
            self.assertEqual(result.returncode, 0, result.stderr + here.text() + there.text())
            with open(os.path.join(EXPECTED, f"{program}.txt")) as expected:
                self.assertEqual(result.stdout, expected.read())
        self.assertEqual(here.text().count("over shm: device"), 2, here.text())
        self.assertEqual(there.text().count("over tcp: device"), 2, there.text())

    def test_one_bad_server_among_good_ones(self):
        server = self.server()
        port = self.listener(lambda connection: None)
        with tempfile.NamedTemporaryFile("w") as tokens:
            tokens.write(f"rcuda1.00000000.{43 * 'A'}.{43 * 'A'}\n")
            tokens.flush()
            self.check(f"{server.address()},127.0.0.1@{port}:0", f"127.0.0.1:{port}", "does not answer",
                       RCUDA_TOKEN_FILE=tokens.name)


if __name__ == "__main__":
    run_tests(globals(), "programs")
