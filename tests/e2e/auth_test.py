#!/usr/bin/env python3
"""Clients of other machines: how they identify themselves, and that nobody between them and the
server reads along. A proxy stands for the network: the server has no local socket at the proxy's
port, so a client that connects to it gets no ticket.

    auth_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import unittest

from proxy import Proxy
from servers import client_environment, eventually, message, read_message, run_tests, Server, UNUSABLE_SETTINGS

BUILD = PROGRAMS = None
EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/expected")
TLS_HANDSHAKE = 0x16
REFUSAL, STATUS, AUTH_QUERY, CHALLENGE, AUTHENTICATE, AUTHENTICATED = 4, 6, 12, 13, 14, 15
HANGS = "munged.* does not answer"
PLAIN_LINK = b"cudatcp1"  # the first bytes of a TCP Link, of a client as of a peer worker


class AuthTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.chmod(self.folder.name, 0o755)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def server(self, name="server", index=0, **settings):
        environment = {"RCUDA_SERVER_TOKENS": self.path(name + ".tokens"),
                       "RCUDA_SERVER_CERTIFICATE": self.path(name + ".pem"),
                       "RCUDA_SERVER_AUDIT": self.path(name + ".audit"), **settings}
        server = Server(BUILD, index=index, environment=environment)
        server.name = name

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def proxy(self, server):
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        return proxy

    def rcuda_token(self, server, *arguments):
        return subprocess.run(
            [os.path.join(BUILD, "bin/rcuda-token"), arguments[0], "--file",
             self.path(server.name + ".tokens"), *arguments[1:]],
            capture_output=True, text=True, check=True).stdout.strip()

    def make_token(self, server, *options):
        return self.rcuda_token(server, "create", "--certificate", self.path(server.name + ".pem"),
                                *options)

    def token_file(self, *lines, mode=0o600):
        path = self.path("token")
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        os.chmod(path, mode)
        return path

    def run_program(self, addresses, program="vector_add", **settings):
        environment = client_environment(BUILD, [], "tcp")
        environment.update(RCUDA_DEVICES=",".join(addresses), HOME=self.folder.name,
                           XDG_CONFIG_HOME=self.folder.name, RCUDA_MUNGE_SOCKET=self.path("none"))
        environment.update(settings)
        return subprocess.run([os.path.join(PROGRAMS, program)], env=environment, text=True,
                              capture_output=True, timeout=300)

    def assert_works(self, result, program="vector_add"):
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(EXPECTED, program + ".txt")) as expected:
            self.assertEqual(result.stdout, expected.read())

    def assert_refused(self, result, *reasons):
        self.assertNotEqual(result.returncode, 0, result.stdout)
        for reason in reasons:
            self.assertIn(reason, result.stderr)

    def audit(self, server):
        with open(self.path(server.name + ".audit")) as file:
            return [json.loads(line) for line in file]

    # ---- tokens ----

    def test_a_token_gives_an_encrypted_session(self):
        server = self.server()
        proxy = self.proxy(server)
        tokens = self.token_file(self.make_token(server, "--label", "mine"))
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens))
        self.assertGreater(len(proxy.seen), 100_000)
        for plain in (b"vector_add", PLAIN_LINK, b"rcuda1."):
            self.assertNotIn(plain, proxy.seen)
        self.assertTrue(eventually(lambda: self.audit(server)))
        record = self.audit(server)[-1]
        self.assertEqual((record["event"], record["method"], record["claims"]["program"]),
                         ("session", "token", "vector_add"))
        self.assertGreater(record["bytes_to_device"], 0)

    def test_without_encryption_the_same_bytes_are_readable(self):
        # Shows that the test above can fail.
        server = self.server(RCUDA_SERVER_SECURITY="insecure")
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_SECURITY="none"))
        self.assertIn(b"vector_add", proxy.seen)
        self.assertIn(PLAIN_LINK, proxy.seen)
        self.assertIn("--insecure", server.text())

    def test_the_default_file_serves_and_a_line_for_the_host_wins(self):
        server, other = self.server(), self.server("other")
        proxy = self.proxy(server)
        os.mkdir(self.path("rcuda"), 0o700)
        shutil.copy(self.token_file(self.make_token(other),
                                    f"127.0.0.1:{proxy.port} {self.make_token(server)}"),
                    self.path("rcuda/token"))
        self.assert_works(self.run_program([proxy.address()]))

    def test_tokens_that_are_no_longer_good(self):
        server = self.server()
        proxy = self.proxy(server)
        token = self.make_token(server)
        head, identity, secret, fingerprint = token.split(".")
        wrong = secret[:-2] + ("AA" if secret[-2:] != "AA" else "BA")
        forged = ".".join((head, identity, wrong, fingerprint))
        self.assert_refused(self.run_program([proxy.address()],
                                             RCUDA_TOKEN_FILE=self.token_file(forged)),
                            "does not know the token " + identity)
        tokens = self.token_file(token)
        stored = self.path("server.tokens")
        with open(stored) as file:
            text = file.read()
        for expires, works in (("2001-01-01T00:00:00Z", False), ("never", True)):
            with open(stored, "w") as file:
                file.write(text.replace("never", expires))
            result = self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens)
            if not works:
                self.assert_refused(result, "expired")
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens))
        self.rcuda_token(server, "revoke", identity)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens),
                            "does not know the token " + identity)
        self.assertIn("refused", [record["event"] for record in self.audit(server)])

    def test_a_server_without_the_tokens_key_gets_nothing(self):
        server, impostor = self.server(), self.server("impostor")
        proxy = self.proxy(impostor)
        token = self.make_token(server)
        self.assert_refused(self.run_program([proxy.address()],
                                             RCUDA_TOKEN_FILE=self.token_file(token)),
                            "does not have the key that the token names")
        self.assertNotIn(token.split(".")[1], impostor.text())

    def test_a_server_without_tls_sees_no_secret(self):
        server = self.server()
        token = self.make_token(server)
        listener = socket.create_server(("127.0.0.1", 0))
        seen = bytearray()

        def answer():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                seen.extend(client.recv(1 << 16))
                client.sendall(message(8))  # in plain text, as a server of the old kind would
                client.close()
        threading.Thread(target=answer, daemon=True).start()
        result = self.run_program([f"127.0.0.1@{listener.getsockname()[1]}:0"],
                                  RCUDA_TOKEN_FILE=self.token_file(token))
        self.assert_refused(result, "TLS")
        self.assertEqual(seen[0], TLS_HANDSHAKE)
        self.assertNotIn(token.split(".")[2].encode(), seen)
        listener.close()

    def test_a_token_file_that_others_can_read(self):
        server = self.server()
        proxy = self.proxy(server)
        tokens = self.token_file(self.make_token(server), mode=0o644)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens),
                            tokens, "chmod 600")

    # ---- without credentials ----

    def test_without_credentials_the_ways_are_named(self):
        server = self.server()
        proxy = self.proxy(server)
        self.assert_refused(self.run_program([proxy.address()]), "rcuda-token create", "munged",
                            "RCUDA_TLS_CERTIFICATE")
        for security in ("none", "plain"):
            with self.subTest(security=security):
                result = self.run_program([proxy.address()], RCUDA_SECURITY=security)
                self.assert_refused(result)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_SECURITY="som"),
                            "RCUDA_SECURITY=som", "auto, tls, plain or none")

    def test_a_stranger_learns_nothing_of_sessions(self):
        server = self.server()
        proxy = self.proxy(server)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
            connection.sendall(message(5))
            kind, text = read_message(connection)
        self.assertEqual(kind, 4)
        self.assertIn("no ticket", text)

    # ---- MUNGE ----

    def start_munged(self, name="munge", key=None):
        munged = shutil.which("munged", path="/usr/sbin:/usr/bin:/sbin")
        if not munged:
            self.skipTest("munged is not installed")
        folder = self.path(name)
        os.mkdir(folder, 0o755)
        key_file = os.path.join(folder, "key")
        with open(key_file, "wb") as file:
            file.write(key or os.urandom(128))
        os.chmod(key_file, 0o600)
        private = os.path.join(folder, "private")
        os.mkdir(private, 0o700)
        self.munged = subprocess.Popen(
            [munged, "--foreground", "--force", "--socket", folder + "/socket", "--key-file", key_file,
             "--pid-file", folder + "/pid", "--log-file", private + "/log",
             "--seed-file", private + "/seed"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def stop(process=self.munged):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait()
        self.addCleanup(stop)
        self.assertTrue(eventually(lambda: os.path.exists(folder + "/socket")))
        return folder + "/socket"

    def test_the_user_of_a_lease_proves_it_by_munge(self):
        """As on a node of a batch system: no secret of the lease has come there."""
        munge = self.start_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=munge, RCUDA_SERVER_REQUIRE_LEASE="true")
        proxy = self.proxy(server)
        for identifier, user, works in (("11111111", str(os.geteuid()), True), ("22222222", "65534", False)):
            subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "take", f"127.0.0.1:{server.port}", "--shared",
                            "--id", identifier, "--user", user], check=True, stdout=subprocess.DEVNULL)
            result = self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge, RCUDA_LEASE=identifier)
            self.assert_works(result) if works else self.assert_refused(result, "is for user")
        self.assertNotIn(b"11111111", proxy.seen)

    def test_munge_with_and_without_encryption(self):
        munge = self.start_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=munge)
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge))
        self.assertNotIn(b"vector_add", proxy.seen)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge,
                                             RCUDA_SECURITY="plain"), "demands encryption")
        lax = self.server("lax", RCUDA_MUNGE_SOCKET=munge, RCUDA_SERVER_SECURITY="plain")
        plain = self.proxy(lax)
        self.assert_works(self.run_program([plain.address()], RCUDA_MUNGE_SOCKET=munge,
                                           RCUDA_SECURITY="plain"))
        self.assertIn(b"vector_add", plain.seen)
        self.assertTrue(eventually(lambda: len(self.audit(lax)) == 1))
        self.assertEqual(self.audit(lax)[0]["method"], "munge")
        self.assert_refused(self.run_program([plain.address()], RCUDA_SECURITY="none"),
                            "no ticket")

    def silent_munged(self):
        """A socket at which nobody accepts, with room for one connection: further ones hang in
        connect()."""
        path = self.path("silent")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen(0)
        return path

    def knock_with_credentials(self, server, count):
        """Connections for which the server has to ask munged."""
        connections = contextlib.ExitStack()
        self.addCleanup(connections.close)
        self.hanging = []
        for _ in range(count):
            connection = connections.enter_context(
                socket.create_connection(("127.0.0.1", int(server.port)), timeout=60))
            connection.sendall(message(AUTH_QUERY))
            self.assertEqual(read_message(connection)[0], CHALLENGE)
            credential = b"MUNGE:AwQFBgcI:"
            connection.sendall(message(AUTHENTICATE, struct.pack("<2I32xI", 3, 0, len(credential))
                                       + credential))
            self.hanging.append(connection)
        return connections

    def serves_others(self, server):
        """Whether clients that hang are answered later than one that came after them."""
        # More than the server checks at a time.
        connections = self.knock_with_credentials(server, 8)
        server.settle()
        poll = select.poll()
        for connection in self.hanging:
            poll.register(connection, select.POLLIN)
        if not poll.poll(0):
            return True
        connections.close()
        return False

    def looks_nothing_up(self, server):
        """The daemon has further threads only while they ask munged or the user database."""
        return len(os.listdir(f"/proc/{server.process.pid}/task")) == 1

    def own_descriptors(self, server):
        """Without the two for each idle worker, whose number follows the demand."""
        return server.descriptors() - 2 * len(server.workers())

    def assert_survives_munged_that_hangs(self, server, good, knock):
        """`good`: munged of the client's machine. `knock`: makes clients that hang."""
        proxy = self.proxy(server)
        token = self.token_file(self.make_token(server))
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=token))
        self.assertTrue(eventually(  # its worker has ended
            lambda: any(line.get("method") == "token" for line in self.audit(server))))
        server.settle()
        self.assertTrue(eventually(lambda: self.looks_nothing_up(server)))
        before = self.own_descriptors(server)
        self.assertTrue(knock())
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=token))
        for connection in self.hanging:
            kind, told = read_message(connection)
            self.assertEqual(kind, REFUSAL)
            self.assertRegex(told, HANGS)
        refused = self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=good)
        self.assert_refused(refused)
        self.assertRegex(refused.stderr, HANGS)
        self.assertTrue(eventually(
            lambda: self.looks_nothing_up(server) and self.own_descriptors(server) == before))

    def test_a_munged_that_hangs_keeps_nobody_else(self):
        key = os.urandom(128)
        good = self.start_munged("good", key)
        stopped = self.start_munged("stopped", key)
        server = self.server(RCUDA_MUNGE_SOCKET=stopped, RCUDA_SERVER_SECURITY="plain")
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=good))
        self.munged.send_signal(signal.SIGSTOP)
        self.assert_survives_munged_that_hangs(
            server, good, lambda: eventually(lambda: self.serves_others(server)))
        # That of the client's own machine.
        self.assert_refused(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=stopped),
                            "munged does not answer at " + stopped)
        self.munged.send_signal(signal.SIGCONT)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=good))

    def test_a_munged_that_accepts_nothing_keeps_nobody_else(self):
        good = self.start_munged()
        silent = self.silent_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=silent, RCUDA_SERVER_SECURITY="plain")
        # libmunge gives up sooner or later than the server, by how busy the machine is.
        self.assert_survives_munged_that_hangs(
            server, good, lambda: self.knock_with_credentials(server, 8))
        self.assert_refused(self.run_program([self.proxy(server).address()], RCUDA_MUNGE_SOCKET=silent),
                            "munged does not answer at " + silent)

    # ---- certificates ----

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def authority(self, name):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-subj", f"/CN={name}", "-days", "9999", "-keyout", self.path(name + ".key"),
                     "-out", self.path(name + ".crt"))

    def certificate(self, authority, name, subject, extensions=""):
        base = self.path(name)
        with open(base + ".ext", "w") as file:
            file.write(extensions)
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                     f"/CN={subject}", "-keyout", base + ".key", "-out", base + ".csr")
        self.openssl("x509", "-req", "-in", base + ".csr", "-CA", self.path(authority + ".crt"),
                     "-CAkey", self.path(authority + ".key"), "-CAcreateserial", "-days", "9999",
                     "-extfile", base + ".ext", "-out", base + ".crt")
        with open(base + ".pem", "w") as both:
            for part in (".crt", ".key"):
                with open(base + part) as file:
                    both.write(file.read())
        os.chmod(base + ".pem", 0o600)
        return base + ".pem"

    def test_certificates(self):
        for name in ("users", "servers", "nobody"):
            self.authority(name)
        self.certificate("servers", "server", "node1", "subjectAltName=IP:127.0.0.1\n")
        self.certificate("servers", "elsewhere", "node2", "subjectAltName=DNS:node2\n")
        user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
        mine = self.certificate("users", "me", user)
        forged = self.certificate("nobody", "forged", user)
        unknown = self.certificate("users", "unknown", "no-such-user")
        settings = {"RCUDA_TLS_AUTHORITIES": self.path("servers.crt")}
        server = self.server(RCUDA_SERVER_CLIENT_AUTHORITIES=self.path("users.crt"))
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_TLS_CERTIFICATE=mine,
                                           **settings))
        self.assertTrue(eventually(lambda: self.audit(server)))
        self.assertEqual((self.audit(server)[-1]["method"], self.audit(server)[-1]["user"]),
                         ("certificate", user))
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TLS_CERTIFICATE=forged,
                                             **settings))
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TLS_CERTIFICATE=unknown,
                                             **settings), "no-such-user")
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TLS_CERTIFICATE=mine),
                            "RCUDA_TLS_AUTHORITIES")
        elsewhere = self.server("elsewhere", RCUDA_SERVER_CLIENT_AUTHORITIES=self.path("users.crt"))
        self.assert_refused(self.run_program([self.proxy(elsewhere).address()],
                                             RCUDA_TLS_CERTIFICATE=mine, **settings),
                            "certificate is not valid here")

    # ---- several servers ----

    def test_copies_between_servers_are_encrypted(self):
        servers = [self.server("a"), self.server("b", index=1)]
        proxies = [self.proxy(server) for server in servers]
        tokens = self.token_file(*(f"127.0.0.1:{proxy.port} {self.make_token(server)}"
                                   for proxy, server in zip(proxies, servers)))
        result = self.run_program([proxy.address() for proxy in proxies], "peer_copies",
                                  RCUDA_TOKEN_FILE=tokens, RCUDA_P2P_PATH="tcp")
        self.assert_works(result, "peer_copies")
        for proxy in proxies:
            self.assertNotIn(PLAIN_LINK, proxy.seen)
        # One worker has reached the other through its proxy, beside the client.
        self.assertGreater(max(len(proxy.seen) for proxy in proxies), 1_000_000)

    # ---- the server's start ----

    def test_insecure_takes_no_public_address(self):
        for options, starts in ((("--insecure", "--listen", "0.0.0.0"), False),
                                (("--security", "insecure-public", "--listen", "0.0.0.0"), True),
                                (("--insecure", "--listen", "127.0.0.1"), True)):
            with self.subTest(options=options):
                if starts:
                    server = Server(BUILD, options=options)
                    self.assertIn("--insecure: whoever reaches", server.text())
                    self.assertEqual(server.stop(), 0, server.text())
                    continue
                result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--port", "0",
                                         "--driver", "softgpu", *options],
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, UNUSABLE_SETTINGS)
                self.assertIn("public address", result.stderr)

    def test_a_configuration_is_checked_without_a_start(self):
        server = self.server()
        self.make_token(server)

        def check(*options, **settings):
            environment = dict(os.environ, RCUDA_SERVER_TOKENS=self.path("server.tokens"),
                               RCUDA_SERVER_CERTIFICATE=self.path("server.pem"), **settings)
            return subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--check-config", *options],
                                  env=environment, capture_output=True, text=True, timeout=60)
        result = check()
        self.assertEqual((result.returncode, result.stdout), (0, "the configuration is usable\n"),
                         result.stderr)
        with open(self.path("text"), "w") as file:
            file.write("neither a key nor a token\n")
        os.chmod(self.path("text"), 0o600)
        for options, culprit in ((("--users", "no-such-user"), "no-such-user"),
                                 (("--users", "@no-such-group"), "no-such-group"),
                                 (("--tokens", self.path("text")), "text"),
                                 (("--certificate", self.path("text")), "text"),
                                 (("--client-authorities", self.path("text")), "text"),
                                 (("--security", "some"), "insecure-public")):
            with self.subTest(options=options):
                result = check(*options)
                self.assertEqual((result.returncode, result.stdout), (UNUSABLE_SETTINGS, ""))
                self.assertIn(culprit, result.stderr)

    def test_a_setting_that_is_none(self):
        result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--port", "0", "--driver",
                                 "softgpu", "--security", "some"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, UNUSABLE_SETTINGS)
        self.assertIn("tls, plain, insecure or insecure-public", result.stderr)

    # ---- messages in the wrong order, by another TLS client ----

    def tls_connection(self, server):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        raw = socket.create_connection(("127.0.0.1", int(server.port)), timeout=60)
        connection = context.wrap_socket(raw)
        self.addCleanup(connection.close)
        self.assertEqual(connection.version(), "TLSv1.3")
        return connection

    def authenticate(self, token):
        _, identity, secret, _ = token.split(".")
        secret = base64.urlsafe_b64decode(secret + "=")
        return message(AUTHENTICATE, struct.pack("<2I", 1, len(identity)) + identity.encode() + secret +
                       struct.pack("<I", 0))

    def answer(self, connection, *messages):
        """The answer to the last of the messages: its kind, and its body or text."""
        for one in messages:
            connection.sendall(one)
            outcome = read_message(connection)
        return outcome

    def test_messages_in_the_wrong_order(self):
        server = self.server()
        login = self.authenticate(self.make_token(server))
        hello, attach, ticket, auth_query = (message(kind, bytes(40)) for kind in (1, 2, 11, 12))
        connection = self.tls_connection(server)
        self.assertEqual(self.answer(connection, login)[0], AUTHENTICATED)
        kind, body = self.answer(connection, message(5))
        self.assertEqual(kind, STATUS)
        for what, messages in (("no identity", [hello]), ("status of strangers", [message(5)]),
                               ("twice", [login, login]), ("a ticket under TLS", [ticket]),
                               ("a ticket after the identity", [login, ticket]),
                               ("a further socket under TLS", [attach]),
                               ("a further socket after the identity", [login, attach]),
                               ("a challenge under TLS", [auth_query]),
                               ("another method", [message(AUTHENTICATE, struct.pack("<I", 9))]),
                               ("an unknown message", [message(99)])):
            with self.subTest(what):
                kind, text = self.answer(self.tls_connection(server), *messages)
                self.assertEqual(kind, REFUSAL, text)
        self.tls_connection(server).sendall(login[:-1])
        random = os.urandom(1 << 12)
        for size in (1, 5, 16, 17, 300, 1 << 12):
            with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
                connection.sendall(b"\x16\x03\x01" + random[:size])
            connection = self.tls_connection(server)
            connection.sendall(random[:size])
            connection.close()
        self.assertEqual(self.answer(self.tls_connection(server), login)[0], AUTHENTICATED)

    def test_another_version_of_tls_is_refused(self):
        server = self.server()
        self.make_token(server)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as raw:
            self.assertRaises(ssl.SSLError, context.wrap_socket, raw)

    # ---- sockets of a session ----

    def test_a_further_socket_of_no_session_is_none(self):
        server = self.server()
        for body in (message(2, os.urandom(16) + struct.pack("<I", 0)),
                     message(7, os.urandom(16) + struct.pack("<3I", 0, 0, 0) +
                             struct.pack("<I", 3) + b"tcp")):
            with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
                connection.sendall(body)
                answer = connection.recv(1 << 16)
                self.assertTrue(answer == b"" or b"no worker of that session" in answer, answer)


if __name__ == "__main__":
    run_tests(globals(), "programs")
