#!/usr/bin/env python3
"""The medium of a session for which none is set. `fickle` (tests/support/fickle_medium.h) stands for an
adapter that only one side has, that both sides have, or that cannot connect.

    media_test.py --build FOLDER --softgpu LIBRARY --programs FOLDER [unittest arguments]
"""

import json
import os
import subprocess
import tempfile
import unittest

from proxy import Proxy
from servers import audit_lines, client_environment, eventually, make_token, run_tests, Server

BUILD = SOFTGPU = PROGRAMS = None
EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/expected")
PLAIN_LINK = b"cudatcp3"  # the first bytes of a TCP Link that is not encrypted


class MediaTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.chmod(self.folder.name, 0o755)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def server(self, fickle, index=0, **settings):
        environment = {"RCUDA_SERVER_SECURITY": "insecure", "RCUDA_SERVER_AUDIT": self.path("audit"),
                       "RCUDA_SERVER_TOKENS": self.path("tokens"),
                       "RCUDA_SERVER_CERTIFICATE": self.path("server.pem"), "RCUDA_SERVER_USERS": "root", **settings}
        if fickle:
            environment["RCUDA_TEST_FICKLE"] = fickle
        server = Server(BUILD, driver=SOFTGPU, index=index, environment=environment,
                        binary="tests/e2e/rcuda-server-delayed")
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        return server, proxy

    def run_program(self, proxies, fickle, transport="auto", program="vector_add", **settings):
        environment = client_environment(BUILD, [], transport, "tests/e2e/librcuda-delayed.so",
                                         RCUDA_LOG="info", RCUDA_SECURITY="none")
        environment.update(RCUDA_DEVICES=",".join(proxy.address() for proxy in proxies),
                           RCUDA_MUNGE_SOCKET=self.path("none"), **settings)
        if fickle:
            environment["RCUDA_TEST_FICKLE"] = fickle
        return subprocess.run([os.path.join(PROGRAMS, program)], env=environment, text=True,
                              capture_output=True, timeout=300)

    def assert_over(self, medium, result, *reasons):
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(EXPECTED, "vector_add.txt")) as expected:
            self.assertEqual(result.stdout, expected.read())
        self.assertRegex(result.stderr, f"connected to .* over {medium}:")
        for reason in reasons:
            self.assertIn(reason, result.stderr)
        self.assertTrue(eventually(self.audit))
        self.assertEqual(self.audit()[-1]["medium"], medium)

    def audit(self):
        return audit_lines(self.path("audit"), "session")

    def check(self, medium, reason, server, client, **settings):
        _, proxy = self.server(server)
        result = self.run_program([proxy], client, **settings)
        self.assert_over(medium, result, reason)

    def test_both_ends_have_what_it_takes(self):
        self.check("fickle", "over fickle: both ends support it", "works", "works")

    def test_the_clients_host_is_not_fit(self):
        self.check("late-tcp", "over late-tcp: this host cannot use fickle", "works", None)

    def test_the_client_cannot_use_it(self):
        self.check("late-tcp", "over late-tcp: fickle is not usable here", "works", "unusable")

    def test_the_servers_host_is_not_fit(self):
        self.check("tcp", "over tcp: the server: this host cannot use fickle", None, "works")

    def test_the_server_cannot_use_it(self):
        self.check("tcp", "over tcp: the server: fickle is not usable here", "unusable", "works")

    def test_no_connection_by_the_clients_fault(self):
        self.check("tcp", "falling back to tcp: cannot connect over fickle: fickle does not connect",
                   "works", "fails")

    def test_no_connection_by_the_servers_fault(self):
        self.check("tcp", "falling back to tcp: cannot connect over fickle", "fails", "works")

    def test_neither_side_says_anything(self):
        _, proxy = self.server("silent", RCUDA_SERVER_HANDSHAKE_TIMEOUT="4s")
        result = self.run_program([proxy], "works")
        self.assert_over("tcp", result, "falling back to tcp: cannot connect over fickle")

    def test_the_worker_of_a_client_that_is_gone_is_free(self):
        # With this handshake timeout, a worker that does not notice the end of its client would wait for an hour for the
        # client's next connection, or for a quarter of an hour for the Link over fickle.
        for fickle in ("fails", "works"):
            with self.subTest(server=fickle):
                server, proxy = self.server(fickle, RCUDA_SERVER_HANDSHAKE_TIMEOUT="60m")
                result = self.run_program([proxy], "dies")
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertTrue(eventually(lambda: "left before its session began" in server.text()), server.text())

    def test_a_medium_that_was_asked_for_is_taken_or_nothing(self):
        for server, client, reason in (("works", "fails", "fickle does not connect"),
                                       ("unusable", "works", "this server cannot use fickle"),
                                       ("works", "unusable", "fickle does not connect"),
                                       ("fails", "works", "over fickle")):
            with self.subTest(server=server, client=client):
                _, proxy = self.server(server)
                result = self.run_program([proxy], client, "fickle")
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(reason, result.stderr)
                self.assertNotIn("connected to", result.stderr)

    # ---- encrypted sessions ----

    def token_file(self):
        make_token(BUILD, os.path.dirname(self.path("token")))
        return self.path("token")

    def check_encrypted(self, medium, reason, security="auto", trusted="false", server="works"):
        _, proxy = self.server(server, RCUDA_SERVER_SECURITY="tls",
                                     RCUDA_SERVER_TRUSTED_FABRIC=trusted)
        result = self.run_program([proxy], "works", RCUDA_SECURITY=security,
                                  RCUDA_TOKEN_FILE=self.token_file())
        self.assert_over(medium, result, reason)
        self.assertGreater(len(proxy.seen), 100_000)
        for plain in (b"vector_add", PLAIN_LINK):
            self.assertNotIn(plain, proxy.seen)

    def test_an_encrypted_session_stays_encrypted(self):
        self.check_encrypted("tcp", "over tcp: the server: fickle does not encrypt, and the session is "
                             "encrypted (RCUDA_SERVER_TRUSTED_FABRIC is not set)")

    def test_unless_the_fabric_is_trusted(self):
        self.check_encrypted("fickle", "over fickle: both ends", trusted="true")

    def test_but_never_where_the_client_wants_encryption(self):
        self.check_encrypted("late-tcp", "over late-tcp: fickle does not encrypt, and RCUDA_SECURITY is tls",
                             security="tls", trusted="true")

    def test_what_it_falls_back_to_is_encrypted(self):
        self.check_encrypted("tcp", "cannot connect over fickle", trusted="true", server="fails")

    # ---- between servers ----

    def test_workers_fall_back_as_well(self):
        for first, second, medium in (("works", "works", "fickle"), ("works", "fails", "tcp"),
                                      ("fails", "works", "tcp"), ("works", "unusable", "tcp"),
                                      (None, "works", "late-tcp")):
            with self.subTest(first=first, second=second):
                servers = [self.server(first, 0, RCUDA_LOG="debug"), self.server(second, 1, RCUDA_LOG="debug")]
                result = self.run_program([proxy for _, proxy in servers], None, "tcp", "several_devices")
                self.assertEqual(result.returncode, 0, result.stderr)
                with open(os.path.join(EXPECTED, "several_devices.txt")) as expected:
                    self.assertEqual(result.stdout, expected.read())
                log = "".join(server.text() for server, _ in servers)
                self.assertRegex(log, f"peer-to-peer with peer .* over {medium}:")


if __name__ == "__main__":
    run_tests(globals(), "softgpu", "programs")
