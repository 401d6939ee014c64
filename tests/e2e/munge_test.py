#!/usr/bin/env python3
"""Clients on other machines that identify themselves by MUNGE: with a lease, as root, and with a
munged that hangs.

    munge_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import unittest

from auth_case import AUTHENTICATE, AuthCase, REFUSAL
from servers import eventually, message, read_message, run_tests

BUILD = PROGRAMS = None
NOBODY = 65534
HANGS = "munged.* does not answer"


class MungeTest(AuthCase):
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
        """As on a node of a batch system, which does not have the secret of the lease."""
        munge = self.start_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=munge, RCUDA_SERVER_REQUIRE_LEASE="true")
        proxy = self.proxy(server)
        for identifier, user, works in (("11111111", str(os.geteuid()), True), ("22222222", "65534", False)):
            subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "take", f"127.0.0.1:{server.port}", "--shared",
                            "--id", identifier, "--for", "1h", "--user", user], check=True, stdout=subprocess.DEVNULL)
            result = self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge, RCUDA_LEASE=identifier)
            self.assert_works(result) if works else self.assert_refused(result, "is for user")
        self.assertNotIn(b"11111111", proxy.seen)

    def test_munge_is_encrypted(self):
        munge = self.start_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=munge)
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge))
        self.assertNotIn(b"vector_add", proxy.seen)
        self.assertTrue(eventually(lambda: self.audit(server)))
        self.assertEqual(self.audit(server)[0]["method"], "munge")
        # A credential without TLS could be relayed.
        with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
            connection.sendall(message(AUTHENTICATE, struct.pack("<2I32xI", 3, 0, 3) + b"abc"))
            kind, text = read_message(connection)
        self.assertEqual((kind, "sent Authenticate twice, or without TLS" in text), (REFUSAL, True), text)

    @unittest.skipIf(os.geteuid() != 0, "only root can run a server as another user")
    def test_root_uses_a_users_server_only_by_name(self):
        munge = self.start_munged()
        server = self.server(user=NOBODY, RCUDA_MUNGE_SOCKET=munge)
        proxy = self.proxy(server)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge),
                            f"the server runs as nobody (uid {NOBODY}), and a program of root (uid 0) uses only servers of root",
                            f"RCUDA_TRUST_USER={NOBODY}")
        self.assertNotIn("session", server.text())
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge, RCUDA_TRUST_USER=str(NOBODY)))

    @unittest.skipIf(os.geteuid() != 0, "only a server of root could give sessions of root")
    def test_root_of_another_machine_is_not_root_here(self):
        munge = self.start_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=munge, RCUDA_SERVER_USERS="*")
        proxy = self.proxy(server)
        self.assert_refused(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=munge),
                            "root of another machine or of a container is not root on the server's machine")
        asked = self.run_tool("rcuda-smi", "drain", f"127.0.0.1:{proxy.port}", RCUDA_MUNGE_SOCKET=munge)
        self.assertIn("root of another machine or of a container is not root on the server's machine", asked.stderr)

    def silent_munged(self):
        """A socket at which nobody accepts connections, with room for one: further clients hang in
        connect()."""
        path = self.path("silent")
        listener = socket.socket(socket.AF_UNIX)
        self.addCleanup(listener.close)
        listener.bind(path)
        listener.listen(0)
        return path

    def knock_with_credentials(self, server, count):
        """Makes connections for which the server has to ask munged."""
        connections = contextlib.ExitStack()
        self.addCleanup(connections.close)
        self.hanging = []
        for _ in range(count):
            connection = connections.enter_context(self.tls_connection(server))
            credential = b"MUNGE:AwQFBgcI:"
            connection.sendall(message(AUTHENTICATE, struct.pack("<2I40xI", 3, 0, len(credential))
                                       + credential))
            self.hanging.append(connection)
        return connections

    def serves_others(self, server):
        """Whether the server answers a later client while it has not yet answered those that hang."""
        # More credentials than the server checks at a time.
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
        """Whether the daemon has one thread: further threads run only while they ask munged or the user database."""
        return len(os.listdir(f"/proc/{server.process.pid}/task")) == 1

    def own_descriptors(self, server):
        """The daemon's descriptors without the four for each worker (process, socket, reports, log), because the number of
        workers follows the demand."""
        return server.descriptors() - 4 * len(server.workers())

    def assert_survives_munged_that_hangs(self, server, good, knock):
        """`good`: munged of the client's machine. `knock`: makes clients that hang."""
        proxy = self.proxy(server)
        token = self.token_file(self.make_token(server))
        self.assert_works(self.run_program([proxy.address()], RCUDA_TOKEN_FILE=token))
        self.assertTrue(eventually(  # the worker of that session has ended
            lambda: any(line["method"] == "token" for line in self.audit(server, "session"))))
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
        server = self.server(RCUDA_MUNGE_SOCKET=stopped)
        proxy = self.proxy(server)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=good))
        self.munged.send_signal(signal.SIGSTOP)
        self.assert_survives_munged_that_hangs(
            server, good, lambda: eventually(lambda: self.serves_others(server)))
        # The munged of the client's own machine hangs as well.
        self.assert_refused(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=stopped),
                            "munged does not answer at " + stopped)
        self.munged.send_signal(signal.SIGCONT)
        self.assert_works(self.run_program([proxy.address()], RCUDA_MUNGE_SOCKET=good))

    def test_a_munged_that_accepts_nothing_keeps_nobody_else(self):
        good = self.start_munged()
        silent = self.silent_munged()
        server = self.server(RCUDA_MUNGE_SOCKET=silent)
        # Depending on the load of the machine, libmunge gives up before the server or after it.
        self.assert_survives_munged_that_hangs(
            server, good, lambda: self.knock_with_credentials(server, 8))
        self.assert_refused(self.run_program([self.proxy(server).address()], RCUDA_MUNGE_SOCKET=silent),
                            "munged does not answer at " + silent)


if __name__ == "__main__":
    run_tests(globals(), "programs")
