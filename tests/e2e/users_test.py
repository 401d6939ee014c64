#!/usr/bin/env python3
"""The users that a server of this machine serves: its own user and root, over every transport.
Another user gets one clear line and no device. Also which servers a user's programs and tools trust.

    users_test.py --build FOLDER --programs FOLDER [unittest arguments]

Needs root and a build that other users can read, to act as another user; otherwise exits with 77.
"""

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import tempfile
import unittest

from servers import client_environment, eventually, local_connection, read_message, run_tests, Server

BUILD = PROGRAMS = None
NOBODY = 65534
OTHER = 65533
REFUSAL = 4


@contextlib.contextmanager
def effective_user(user):
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


def run_as(user, command, **more):
    return subprocess.run(command, capture_output=True, timeout=120, cwd="/", user=user, group=user,
                          extra_groups=[], **more)


class UsersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("SKIPPED: only root can be another user")
            raise SystemExit(77)
        library = os.path.join(BUILD, "lib/librcuda.so")
        if run_as(NOBODY, ["cat", library]).returncode != 0:
            print("SKIPPED: the build folder is closed to other users")
            raise SystemExit(77)

    def server(self, **more):
        server = Server(BUILD, **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def run_program(self, server, transport, user, trusted=""):
        return run_as(user, [os.path.join(PROGRAMS, "vector_add")], text=True,
                      env=dict(client_environment(BUILD, [server], transport), RCUDA_TRUST_USER=trusted))

    def check_served(self, server, user, trusted=""):
        for transport in ("auto", "shm", "tcp"):
            result = self.run_program(server, transport, user, trusted)
            self.assertEqual(result.returncode, 0, (transport, result.stderr, server.text()))

    def smi(self, server, user, trusted=""):
        return run_as(user, [os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1@{server.port}"], text=True,
                      env=dict(os.environ, RCUDA_TRUST_USER=trusted))

    def test_a_reload_changes_whom_a_server_serves(self):
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "server.toml")

            def write(users):
                with open(config, "w") as file:
                    file.write(f'users = "{users}"\n')
            write(OTHER)
            server = self.server(options=("--config", config))
            self.check_refused(server, NOBODY)
            self.check_served(server, OTHER)
            write(NOBODY)
            server.process.send_signal(signal.SIGHUP)
            self.assertTrue(eventually(lambda: "changed: users" in server.text()), server.text())
            self.check_refused(server, OTHER)
            self.check_served(server, NOBODY)

    def check_refused(self, server, user, *reasons, trusted=""):
        texts = (*reasons, "run the program as the server's user", "rcuda-server --port", server.port)
        for transport in ("auto", "shm", "tcp"):
            result = self.run_program(server, transport, user, trusted)
            self.assertEqual(result.returncode, 1, transport)
            self.assertIn("cudaErrorNoDevice", result.stderr)
            lines = [line for line in result.stderr.splitlines() if "rcuda[" in line]
            self.assertEqual(len(lines), 1, result.stderr)
            for text in texts:
                self.assertIn(text, lines[0])
        asked = self.smi(server, user, trusted)
        self.assertEqual(asked.returncode, 1)
        for text in texts:
            self.assertIn(text, asked.stderr)

    def test_another_user_of_roots_server(self):
        server = self.server()
        self.check_refused(server, NOBODY, "runs as root (uid 0) ", f"uid {NOBODY}")
        self.check_served(server, 0)
        self.assertEqual(self.smi(server, 0).returncode, 0)

    def test_a_server_of_a_user_of_its_own(self):
        server = self.server(user=NOBODY)
        theirs = f"runs as nobody (uid {NOBODY}), "
        self.check_refused(server, OTHER, theirs, f"a program of uid {OTHER} ", f"RCUDA_TRUST_USER={NOBODY}")
        # A user may trust the server, but the server does not serve that user.
        self.check_refused(server, OTHER, f"runs as nobody (uid {NOBODY}) ", f"uid {OTHER}", trusted=f"0,{NOBODY}")
        self.check_served(server, NOBODY)
        self.assertEqual(self.smi(server, NOBODY).returncode, 0)

    def test_root_uses_a_users_server_only_by_name(self):
        server = self.server(user=NOBODY)
        self.check_refused(server, 0, f"runs as nobody (uid {NOBODY}), ", "uses only servers of root",
                           f"RCUDA_TRUST_USER={NOBODY}")
        self.check_refused(server, 0, "uses only servers of root", trusted=str(OTHER))
        self.check_served(server, 0, trusted=pwd.getpwuid(NOBODY).pw_name)
        self.assertEqual(self.smi(server, 0, trusted=str(NOBODY)).returncode, 0)
        unknown = self.run_program(server, "auto", 0, trusted="no-such-user")
        self.assertIn("RCUDA_TRUST_USER=no-such-user (from the environment) is not usable", unknown.stderr)

    def control(self, server, user, *command):
        return run_as(user, [os.path.join(BUILD, "bin/rcuda-smi"), *map(str, command)], text=True)

    def test_who_may_end_sessions_and_drain_the_server(self):
        server = self.server(options=["--users", f"{NOBODY},{OTHER}"])
        at = f"127.0.0.1:{server.port}"
        session = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, user=NOBODY, group=NOBODY, extra_groups=[],
                                   cwd="/", env=client_environment(BUILD, [server], "tcp"))
        self.addCleanup(session.kill)
        session.stdout.readline()
        worker, = server.sessions(BUILD).values()
        for command in (("drain", at), ("resume", at)):
            denied = self.control(server, NOBODY, *command)
            self.assertEqual(denied.returncode, 1)
            self.assertIn("user nobody may not drain this server, reload its settings or move sessions: only the server's own "
                          "user, root and users in its setting operators (RCUDA_SERVER_OPERATORS) may", denied.stderr)
            self.assertNotIn("rcuda-token", denied.stderr)  # the server's own machine needs no token
        self.assertRegex(self.control(server, OTHER, "end", at, worker).stderr,
                         "no session of yours .*; only operators may end sessions of other users")
        self.assertIsNone(session.poll())
        self.assertEqual(self.control(server, NOBODY, "end", at, worker).returncode, 0)
        self.assertIn("nobody ended the session", session.communicate(timeout=60)[1])

    # The server still served the user when the program began to wait.
    def test_a_user_who_is_removed_gets_no_session(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write('users = "nobody"\nmax_sessions = 1\n')
            config.flush()
            server = self.server(options=["--config", config.name])
            def start(user, **settings):
                run = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True, user=user, group=user, extra_groups=[], cwd="/",
                                       env=client_environment(BUILD, [server], "tcp", **settings))
                self.addCleanup(lambda: (run.kill(), run.communicate()))
                return run
            self.assertEqual(start(0).stdout.readline(), "running\n")
            waits = start(NOBODY, RCUDA_WAIT="10min")
            self.assertTrue(eventually(lambda: ", 1 waiting, " in server.status(BUILD)), server.status(BUILD))
            config.truncate(0)
            config.seek(0)
            config.write("max_sessions = 2\n")
            config.flush()
            asked = self.control(server, 0, "reload", f"127.0.0.1:{server.port}")
            self.assertEqual(asked.returncode, 0, asked.stderr)
            out, err = waits.communicate(timeout=60)
            self.assertNotEqual(waits.returncode, 0, out + err)
            self.assertIn("the server does not serve user nobody any more", err)

    def figures(self, server, user):
        """The first device and the sessions that rcuda-smi shows to that user."""
        asked = self.control(server, user, "--json", f"127.0.0.1:{server.port}")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        one, = json.loads(asked.stdout)
        return one["devices"][0], one["sessions"]

    def test_operators_see_the_gpu_and_users_their_quota(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as limits:
            limits.write('[limits.session]\ndevice_memory = "1G"\n')
            limits.flush()
            server = self.server(options=["--users", str(NOBODY), "--operators", str(OTHER),
                                          "--config", limits.name])
        session = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE, user=NOBODY,
                                   group=NOBODY, extra_groups=[], cwd="/",
                                   env=client_environment(BUILD, [server], "tcp"))
        self.addCleanup(session.stdout.close)
        self.addCleanup(session.wait)
        self.addCleanup(session.kill)
        session.stdout.readline()
        for user in (0, OTHER):
            device, (held,) = self.figures(server, user)
            self.assertEqual((held["pid"], held["quota_bytes"]), (session.pid, 1 << 30))
            self.assertGreater(device["total_bytes"], 1 << 30)
            self.assertIsNotNone(device["used_bytes"])
            self.assertEqual((device["quota_bytes"], device["quota_used_bytes"]), (1 << 30, 0))
        device, (held,) = self.figures(server, NOBODY)
        self.assertGreater(device["total_bytes"], 1 << 30)
        self.assertIsNone(device["used_bytes"])
        # The memory of the driver for a context counts as well.
        self.assertEqual((device["quota_bytes"], held["quota_bytes"]), (1 << 30, 1 << 30))
        self.assertGreater(device["quota_used_bytes"], 0)
        top = self.control(server, 0, "top", "--every", "0.1", "--rounds", "1", f"127.0.0.1:{server.port}").stdout
        self.assertRegex(top, r"device 0 .* of \d+ GiB .* 1 session, your quota: 0 B of 1 GiB\n")

    def test_the_daemon_turns_another_user_away_itself(self):
        """The client of this test makes no checks itself."""
        server = self.server()
        with effective_user(NOBODY):
            connection = local_connection(server.port)
        self.addCleanup(connection.close)
        kind, answer = read_message(connection)
        self.assertEqual(kind, REFUSAL)
        for text in ("runs as root (uid 0)", f"uid {NOBODY}", "run the program as the server's user"):
            self.assertIn(text, answer)
        self.assertIn(" of nobody is refused", server.text())

    def test_a_client_says_nothing_to_whom_it_does_not_trust(self):
        """Another user has bound the name of the local socket first."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        taken = socket.socket(socket.AF_UNIX)
        self.addCleanup(taken.close)
        with effective_user(NOBODY):
            taken.bind(f"\0rcuda-{port}")
            taken.listen()
        for user, transport in ((OTHER, "auto"), (OTHER, "shm"), (0, "auto"), (0, "shm")):
            result = run_as(user, [os.path.join(PROGRAMS, "vector_add")], text=True,
                            env=dict(client_environment(BUILD, [], transport), RCUDA_DEVICES=f"localhost@{port}:0"))
            self.assertIn("cudaErrorNoDevice", result.stderr)
            self.assertIn(f"runs as nobody (uid {NOBODY}), ", result.stderr)
            connection, _ = taken.accept()
            with connection:
                self.assertEqual(connection.recv(1), b"")

    def test_copies_between_servers_of_two_users(self):
        servers = [self.server(index=0), self.server(index=1, user=NOBODY)]
        for order in (servers, servers[::-1]):
            result = run_as(0, [os.path.join(PROGRAMS, "peer_copies")], text=True,
                            env=client_environment(BUILD, order))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("will fail", result.stderr)


if __name__ == "__main__":
    run_tests(globals(), "programs")
