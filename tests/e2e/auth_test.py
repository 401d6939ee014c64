#!/usr/bin/env python3
"""Clients on other machines: how they identify themselves, and that nobody between them and the server can read what
they send. munge_test.py tests MUNGE.

    auth_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import concurrent.futures
import contextlib
import grp
import os
import pwd
import re
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import unittest

from auth_case import AUTHENTICATE, AUTHENTICATED, AuthCase, EXPECTED, REFUSAL, STATUS
from servers import (client_environment, eventually, local_connection, make_certificate, message, read_message, run_tests, Server,
                     UNUSABLE_SETTINGS, without_seccomp, WRONG_OPTIONS)

BUILD = PROGRAMS = None
TLS_HANDSHAKE = 0x16
PLAIN_LINK = b"cudatcp3"  # the first bytes of a TCP Link from a client or from a peer worker


class AuthTest(AuthCase):
    # ---- tokens ----

    def test_a_token_gives_an_encrypted_session(self):
        server = self.server()
        proxy = self.proxy(server)
        tokens = self.token_file(self.make_token(server, "--label", "mine"))
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens))
        self.assertGreater(len(proxy.seen), 100_000)
        for plain in (b"vector_add", PLAIN_LINK, b"rcuda1."):
            self.assertNotIn(plain, proxy.seen)
        self.assertTrue(eventually(lambda: self.audit(server, "session")))
        begin, record = self.audit(server)
        self.assertEqual(begin["event"], "begin")
        for name in ("user", "method", "claims", "worker"):
            self.assertEqual(begin[name], record[name])
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
                client.sendall(message(8))  # in plain text, as an old server would
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

    def test_a_tokens_role_is_all_that_it_allows(self):
        server = self.server(RCUDA_SERVER_USERS="root, nobody")
        proxy = self.proxy(server)
        client = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, env=client_environment(BUILD, [server]))
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        self.assertEqual(client.stdout.readline(), "running\n")
        worker = str(server.sessions(BUILD)[client.pid])

        def attempt(role, *options):
            """The outcome of each command for the holder of a token of this role."""
            token = self.token_file(self.make_token(server, "--role", role, *options))
            outcomes = {"session": self.run_program([proxy.address()], RCUDA_TOKEN_FILE=token)}
            for name, *command in (("status", "rcuda-smi"), ("resume", "rcuda-smi", "resume"), ("list", "rcuda-lease", "list"),
                                   ("take", "rcuda-lease", "take", "--shared", "--for", "1h"), ("end", "rcuda-smi", "end")):
                arguments = (worker,) if name == "end" else ()
                outcomes[name] = self.run_tool(command[0], *command[1:], f"127.0.0.1:{proxy.port}", *arguments,
                                               RCUDA_TOKEN_FILE=token)
            return outcomes

        def check(outcomes, works, refusal):
            for name, outcome in outcomes.items():
                self.assertEqual(outcome.returncode, 0 if name in works else 1, (name, outcome.stderr))
                if name not in works:
                    self.assertRegex(outcome.stderr, refusal)

        done = attempt("observer")
        check(done, {"status"}, r"token is observer, but .* need the role (session|operator): .rcuda-token create --role")
        self.assertIn(f"worker {worker}", done["status"].stdout)
        self.assertIsNone(client.poll())
        # The server is root's, and to another user it shows no session of root.
        other = ["--user", "nobody"] if os.geteuid() == 0 else []
        done = attempt("session", *other)
        check(done, {"session", "status", "list"} | (set() if other else {"end"}),
              "operator|may not lease devices|no session of yours")
        user = "nobody" if other else pwd.getpwuid(os.geteuid()).pw_name
        for name, what in (("resume", "drain this server, reload its settings or move sessions"),
                           ("take", "lease devices of this server")):
            self.assertIn(f"user {user} may not {what}: the role of the client's token is session, not operator; "
                          f'"rcuda-token create --user {user} --role operator" on the server', done[name].stderr)
        self.assertNotIn(worker if other else "no session", done["status"].stdout)
        if other:
            self.assertIsNone(client.poll())
            done = attempt("operator")
            check(done, {"status", "resume", "list", "take", "end"}, "token is operator, but sessions need the role session")
            self.assertIn(f"worker {worker}", done["status"].stdout)
            self.assertTrue(eventually(lambda: client.poll() is not None))

    @unittest.skipIf(os.geteuid() != 0, "only a server of root could give sessions of root")
    def test_root_of_another_machine_is_not_root_here(self):
        server = self.server(RCUDA_SERVER_USERS="*")
        proxy = self.proxy(server)
        token = self.token_file(self.make_token(server))
        refused = "root of another machine or of a container is not root on the server's machine", "--users root"
        self.assert_refused(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=token), *refused)
        asked = self.run_tool("rcuda-smi", f"127.0.0.1:{proxy.port}", RCUDA_TOKEN_FILE=token)
        self.assertIn(refused[0], asked.stderr)
        # For a client on the server's machine, the server learns from the kernel that the user is root, over TCP as well.
        for transport in ("shm", "tcp"):
            local = client_environment(BUILD, [server], transport)
            self.assert_works(subprocess.run([os.path.join(PROGRAMS, "vector_add")], env=local, capture_output=True,
                                             text=True, timeout=120))
        named = self.server("named", RCUDA_SERVER_USERS="nobody, root")
        token = self.token_file(self.make_token(named))
        self.assert_works(self.run_program([self.proxy(named).address()], RCUDA_TOKEN_FILE=token))

    # If the setting lists users, the server serves no others, even if they have tokens.
    @unittest.skipIf(os.geteuid() != 0, "makes a token for another user")
    def test_the_setting_users_holds_for_tokens_too(self):
        group = grp.getgrgid(pwd.getpwnam("nobody").pw_gid).gr_name
        for users, works in (("", True), ("*", True), ("nobody", True), ("root, nobody", True), ("@" + group, True),
                             ("root", False), ("daemon", False)):
            with self.subTest(users):
                server = self.server("named-" + users.strip("@*"), RCUDA_SERVER_USERS=users)
                at = self.proxy(server).address()
                token = self.token_file(self.make_token(server, "--user", "nobody"))
                result = self.run_program([at], RCUDA_TOKEN_FILE=token)
                self.assertEqual("users with tokens on 127.0.0.1" in server.text(), users == "", server.text())
                if works:
                    self.assert_works(result)
                    continue
                self.assert_refused(result, "the server does not serve user nobody: its setting \"users\" lists only "
                                    "others, and also applies to tokens; ask its administrator to add nobody "
                                    "to the setting, or to a group")
                # A token whose role gives no sessions works also for a user that the setting does not list.
                observer = self.token_file(self.make_token(server, "--user", "nobody", "--role", "observer"))
                asked = self.run_tool("rcuda-smi", at.rsplit(":", 1)[0], RCUDA_TOKEN_FILE=observer)
                self.assertEqual(asked.returncode, 0, asked.stderr)

    # ---- without credentials ----

    def test_without_credentials_the_ways_are_named(self):
        server = self.server()
        proxy = self.proxy(server)
        self.assert_refused(self.run_program([proxy.address()]), "rcuda-token create", "munged",
                            "RCUDA_TLS_CERTIFICATE")
        self.assert_refused(self.run_program([proxy.address()], RCUDA_SECURITY="none"))
        for security in ("som", "plain"):
            self.assert_refused(self.run_program([proxy.address()], RCUDA_SECURITY=security),
                                f"RCUDA_SECURITY={security}", "auto | tls | none")

    def test_a_stranger_learns_nothing_of_sessions(self):
        server = self.server()
        proxy = self.proxy(server)
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
            connection.sendall(message(5))
            kind, text = read_message(connection)
        self.assertEqual(kind, 4)
        self.assertIn("no ticket", text)

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
        self.assertTrue(eventually(lambda: self.audit(server, "session")))
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
        # Besides the client, one worker has connected to the other through a proxy.
        self.assertGreater(max(len(proxy.seen) for proxy in proxies), 1_000_000)

    # ---- the server's start ----

    def test_insecure_takes_no_public_address(self):
        for options, starts in ((("--insecure", "--listen", "0.0.0.0"), False),
                                (("--security", "insecure-public", "--listen", "0.0.0.0"), True),
                                (("--insecure", "--listen", "127.0.0.1"), True)):
            with self.subTest(options=options):
                if starts:
                    server = Server(BUILD, options=options)
                    self.assertIn("--insecure: any program that can connect to", server.text())
                    self.assertEqual(server.stop(), 0, server.text())
                    continue
                result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--port", "0",
                                         "--driver", "softgpu", *options],
                                        capture_output=True, text=True, timeout=60)
                self.assertEqual(result.returncode, UNUSABLE_SETTINGS)
                self.assertIn("public address", result.stderr)

    def test_a_server_that_cannot_speak_tls_does_not_listen_for_others(self):
        make_certificate(BUILD, self.path("server.pem"))

        def start(*options):
            return subprocess.run([*without_seccomp(self.folder.name), os.path.join(BUILD, "bin/rcuda-server"), "--port", "0",
                                   "--driver", "softgpu", "--certificate", self.path("server.pem"), *options],
                                  capture_output=True, text=True, timeout=60)
        result = start("--listen", "0.0.0.0")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("this kernel cannot filter system calls", result.stderr)
        self.assertIn("the server cannot speak TLS", result.stderr)
        # A server without clients on other machines does not need TLS.
        server = Server(BUILD, options=("--certificate", self.path("server.pem")), wrapper=without_seccomp(self.folder.name))
        self.assertEqual(server.stop(), 0, server.text())

    @unittest.skipUnless(shutil.which("unshare") and subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode == 0,
                         "no user namespaces")
    def test_tls_in_a_user_namespace_with_one_user(self):
        server = Server(BUILD, options=("--listen", "0.0.0.0", "--certificate", self.path("server.pem")),
                        wrapper=("unshare", "-Ur"))
        self.tls_connection(server)
        self.assertEqual(server.stop(), 0, server.text())

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
        # Status 1, not "unusable settings", because the user database may get a name later.
        for status, options, culprit in ((1, ("--users", "no-such-user"), "no-such-user"),
                                         (1, ("--users", "@no-such-group"), "no-such-group"),
                                         (1, ("--operators", "@no-such-group"), "no-such-group"),
                                         (UNUSABLE_SETTINGS, ("--tokens", self.path("text")), "text"),
                                         (UNUSABLE_SETTINGS, ("--certificate", self.path("text")), "text"),
                                         (UNUSABLE_SETTINGS, ("--client-authorities", self.path("text")), "text"),
                                         (WRONG_OPTIONS, ("--security", "some"), "insecure-public")):
            with self.subTest(options=options):
                result = check(*options)
                self.assertEqual((result.returncode, result.stdout), (status, ""))
                self.assertIn(culprit, result.stderr)

    def test_a_setting_that_is_none(self):
        result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--port", "0", "--driver",
                                 "softgpu", "--security", "some"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, WRONG_OPTIONS)
        self.assertIn("tls | insecure | insecure-public", result.stderr)

    # ---- messages in the wrong order, by another TLS client ----

    def answer(self, connection, *messages):
        """The kind, and the body or text, of the answer to the last of the messages. A token among the messages stands for
        the messages of a login with it."""
        for one in messages:
            connection.sendall(connection.login(one) if isinstance(one, str) else one)
            outcome = read_message(connection)
        return outcome

    def test_messages_in_the_wrong_order(self):
        server = self.server()
        token = self.make_token(server)
        hello, attach, ticket = (message(kind, bytes(40)) for kind in (1, 2, 11))
        connection = self.tls_connection(server)
        self.assertEqual(self.answer(connection, token)[0], AUTHENTICATED)
        kind, body = self.answer(connection, message(5))
        self.assertEqual(kind, STATUS)
        for what, messages in (("no identity", [hello]), ("status of strangers", [message(5)]),
                               ("twice", [token, token]), ("a ticket under TLS", [ticket]),
                               ("a ticket after the identity", [token, ticket]),
                               ("a further socket under TLS", [attach]),
                               ("a further socket after the identity", [token, attach]),
                               ("a message that is not used", [message(12)]),
                               ("another method", [message(AUTHENTICATE, struct.pack("<I", 9))]),
                               ("an unknown message", [message(99)])):
            with self.subTest(what):
                kind, text = self.answer(self.tls_connection(server), *messages)
                self.assertEqual(kind, REFUSAL, text)
        connection = self.tls_connection(server)
        connection.sendall(connection.login(token)[:-1])
        random = os.urandom(1 << 12)
        for size in (1, 5, 16, 17, 300, 1 << 12):
            with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
                connection.sendall(b"\x16\x03\x01" + random[:size])
            connection = self.tls_connection(server)
            connection.sendall(random[:size])
            connection.close()
        self.assertEqual(self.answer(self.tls_connection(server), token)[0], AUTHENTICATED)

    def test_another_version_of_tls_is_refused(self):
        server = self.server()
        self.make_token(server)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as raw:
            self.assertRaises(ssl.SSLError, context.wrap_socket, raw)

    # ---- many handshakes ----

    def client_hello(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        sent = ssl.MemoryBIO()
        with self.assertRaises(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
        return sent.read()

    def test_a_flood_of_handshakes_holds_up_nobody_else(self):
        """All messages arrive before the server reads any of them. Those of the handshakes arrive first."""
        server = self.server()
        self.make_token(server)
        hello = self.client_hello()
        server.settle()
        server.process.send_signal(signal.SIGSTOP)
        with contextlib.ExitStack() as flood:
            strangers = [flood.enter_context(socket.create_connection(("127.0.0.1", int(server.port)), timeout=60))
                         for _ in range(200)]
            for stranger in strangers:
                stranger.sendall(hello)
            question = flood.enter_context(local_connection(server.port))
            question.sendall(message(5))
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual(read_message(question)[0], STATUS)
            answered = len(select.select(strangers, [], [], 0)[0])
            self.assertLess(answered, 100)
            # The server still answers all of them.
            self.assertTrue(eventually(lambda: len(select.select(strangers, [], [], 0)[0]) == len(strangers)))

    def test_many_clients_of_one_origin_get_in_at_once(self):
        server = self.server()
        token = self.make_token(server)
        with contextlib.ExitStack() as failed:  # connections whose handshakes have just failed
            for _ in range(100):
                stranger = failed.enter_context(socket.create_connection(("127.0.0.1", int(server.port)), timeout=60))
                stranger.sendall(b"\x16\x03\x01" + bytes(40))
        with concurrent.futures.ThreadPoolExecutor(64) as threads:
            kinds = list(threads.map(lambda _: self.answer(self.tls_connection(server), token)[0], range(256)))
        self.assertEqual(kinds, [AUTHENTICATED] * 256)

    # ---- doors ----

    def test_doors_are_no_remains_of_workers(self):
        server = self.server()
        token = self.make_token(server)
        connection = self.tls_connection(server)
        ended = server.workers()[0]
        local = client_environment(BUILD, [server], "shm")
        while ended in server.workers():
            self.assert_works(subprocess.run([os.path.join(PROGRAMS, "vector_add")], env=local, capture_output=True,
                                             text=True, timeout=120))
        self.assertEqual(self.answer(connection, token)[0], AUTHENTICATED)
        self.assertNotIn("left behind", server.text())

    def test_a_door_that_dies_takes_its_connections_with_it(self):
        server = self.server()
        proxy = self.proxy(server)
        tokens = self.token_file(self.make_token(server))
        connection = self.tls_connection(server)
        self.assertGreaterEqual(len(server.doors()), 1)
        for door in server.doors():
            os.kill(door, signal.SIGKILL)
        self.assertEqual(connection.recv(1), b"")
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=tokens))

    def test_a_door_knows_nothing(self):
        server = self.server()
        self.make_token(server)
        self.tls_connection(server)
        for door in server.doors():
            with open(f"/proc/{door}/environ") as environment:
                self.assertNotIn("RCUDA", environment.read())
            # While a door starts, it still has the server's log open.
            self.assertTrue(eventually(lambda: all(
                re.fullmatch("/dev/null|socket:.*", os.readlink(f"/proc/{door}/fd/{number}"))
                for number in os.listdir(f"/proc/{door}/fd"))))

    # ---- sockets of a session ----

    def test_a_further_socket_of_no_session_is_none(self):
        server = self.server()
        for body in (message(2, os.urandom(24) + struct.pack("<2I", 0, 0)),
                     message(2, os.urandom(24) + struct.pack("<2I", 0, 1)),
                     message(7, os.urandom(16) + struct.pack("<3I", 0, 0, 0) +
                             struct.pack("<I", 3) + b"tcp" + struct.pack("<I", 0) + bytes(16))):
            with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
                connection.sendall(body)
                answer = connection.recv(1 << 16)
                self.assertTrue(answer == b"" or b"does not have that session" in answer or
                                b"the session has ended" in answer, answer)


if __name__ == "__main__":
    run_tests(globals(), "programs")
