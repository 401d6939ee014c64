#!/usr/bin/env python3
"""Sessions whose connections are lost: a program continues if they come back, and otherwise ends with the reason.

    reconnect_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import os
import signal
import socket
import subprocess

from auth_case import AuthCase
from cutting_proxy import CuttingProxy
from servers import audit_lines, client_environment, eventually, fetch_ticket, read_message, run_tests

BUILD = PROGRAMS = None
HANG_SECONDS = 120  # only a program that hangs takes longer
CUTS = 60
ATTACH, REFUSAL = 2, 4


class ReconnectTest(AuthCase):
    def proxy(self, server, **options):
        proxy = CuttingProxy(server.port, **options)
        self.addCleanup(proxy.close)
        return proxy

    def environment(self, proxy, **settings):
        # If the proxy sends a ticket, the ticket identifies the client, so the client must not identify itself as well.
        security = {"RCUDA_SECURITY": "none"} if proxy.tickets else {}
        return dict(client_environment(self.build, [], "tcp", **security, **settings), RCUDA_DEVICES=proxy.address())

    def start(self, proxy, reconnect="60s", **settings):
        """Starts a program that uses its device and checks results until it is killed."""
        environment = self.environment(proxy, RCUDA_RECONNECT=reconnect, **settings)
        run = subprocess.Popen([os.path.join(self.build, "tests/e2e/endless")], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (run.kill(), run.communicate()))
        self.assertEqual(run.stdout.readline(), "running\n")
        return run

    def check_lost(self, run, why):
        out, err = run.communicate(timeout=HANG_SECONDS)
        self.assertEqual(run.returncode, 3, out + err)
        lines = [line for line in err.splitlines() if " is lost: " in line]
        self.assertEqual(len(lines), 1, err)
        self.assertIn(why, lines[0])
        return err

    def check_survives(self, server, proxy, **settings):
        run = self.start(proxy, **settings)
        self.assertTrue(eventually(lambda: proxy.cuts >= CUTS or run.poll() is not None))
        out = "" if run.poll() is None else "".join(run.communicate())
        self.assertIsNone(run.poll(), out + server.text())
        proxy.take_down()
        run.kill()
        _, err = run.communicate()
        self.assertGreater(err.count("the connection is lost"), 1, err)
        self.assertGreater(err.count("the connection is back after"), 1, err)

    def test_a_program_survives_cuts(self):
        server = self.server(RCUDA_SERVER_RECONNECT_TIMEOUT="30s")
        self.check_survives(server, self.proxy(server))

    def test_a_program_survives_cuts_under_tls(self):
        server = self.server(RCUDA_SERVER_RECONNECT_TIMEOUT="30s", RCUDA_SERVER_RECONNECT_MEMORY="1M")
        token = self.token_file(self.make_token(server))
        self.check_survives(server, self.proxy(server, tickets=False), RCUDA_TOKEN_FILE=token)

    def test_a_network_that_comes_back(self):
        server = self.server(RCUDA_SERVER_RECONNECT_TIMEOUT="10s")
        proxy = self.proxy(server, seconds=1e6)
        run = self.start(proxy)
        proxy.take_down()
        self.assertTrue(eventually(lambda: "the connection is lost" in server.text()))
        self.assertIn("disconnected for", server.status(self.build))
        proxy.bring_up()
        self.assertTrue(eventually(lambda: "the connection is back after" in server.text()))
        self.assertNotIn("disconnected for", server.status(self.build))
        self.assertIsNone(run.poll())
        run.kill()
        proxy.take_down()
        self.assertTrue(eventually(lambda: audit_lines(self.path("server.audit"), "session")))
        self.assertEqual(audit_lines(self.path("server.audit"), "session")[0]["losses"], 2)

    def test_the_client_gives_up_after_its_time(self):
        server = self.server()
        proxy = self.proxy(server, seconds=1e6)
        run = self.start(proxy, reconnect="1s")
        proxy.take_down()
        self.check_lost(run, "the connection was lost and did not come back within 1s")
        self.assertTrue(eventually(lambda: not server.sessions(self.build)))

    # The server cannot find out that the client was killed.
    def test_a_killed_client_leaves_nothing(self):
        server = self.server(RCUDA_SERVER_RECONNECT_TIMEOUT="1s")
        run = self.start(self.proxy(server, seconds=1e6))
        run.kill()
        self.assertTrue(eventually(lambda: not server.sessions(self.build)))
        self.assertIn("did not come back within 1s", server.text())

    def test_a_client_that_ends_normally_is_not_awaited(self):
        server = self.server()
        proxy = self.proxy(server, seconds=1e6)
        result = subprocess.run([os.path.join(self.programs, "vector_add")], timeout=HANG_SECONDS,
                                env=self.environment(proxy, RCUDA_RECONNECT="60s"), capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(eventually(lambda: not server.sessions(self.build), seconds=20))
        self.assertNotIn("the connection is lost", server.text() + result.stderr)

    def test_a_worker_that_died_is_not_awaited(self):
        server = self.server()
        run = self.start(self.proxy(server, seconds=1e6))
        os.kill(server.sessions(self.build)[run.pid], signal.SIGKILL)
        self.check_lost(run, "the session has ended")

    def test_a_server_without_it_ends_sessions_as_before(self):
        server = self.server(RCUDA_SERVER_RECONNECT_TIMEOUT="0")
        proxy = self.proxy(server, seconds=1e6)
        run = self.start(proxy)
        proxy.take_down()
        err = self.check_lost(run, "")
        self.assertNotIn("goes on if the connection is back", err)

    # The client prints one line, unless the server allows the whole time.
    def test_a_client_reads_how_long_the_server_lets_it_reconnect(self):
        for allowed, line in (("0", "RCUDA_RECONNECT asks for 1m, but a lost connection ends the session: "),
                              ("30s", "RCUDA_RECONNECT asks for 1m, but a lost connection ends the session after 30s: "),
                              ("60s", ""), ("2m", "")):
            with self.subTest(allowed):
                server = self.server("allows-" + allowed, RCUDA_SERVER_RECONNECT_TIMEOUT=allowed)
                result = self.run_program([server.address()], RCUDA_RECONNECT="60s")
                self.assert_works(result)
                lines = [text for text in result.stderr.splitlines() if "RCUDA_RECONNECT" in text]
                self.assertEqual(len(lines), 1 if line else 0, result.stderr)
                if line:
                    self.assertIn(line + "reconnect_timeout of the server allows no more", lines[0])

    def disconnected(self, rules, arguments=(), **more):
        """Starts a server with these rules, and a program with these arguments that then loses its connections."""
        with open(self.path("server.toml"), "w") as file:
            file.write(rules)
        server = self.server(options=["--config", self.path("server.toml")], **more)
        proxy = self.proxy(server, seconds=1e6)
        run = self.start(proxy) if not arguments else self.hold(self.environment(proxy, RCUDA_RECONNECT="60s"), arguments)
        proxy.take_down()
        self.assertTrue(eventually(lambda: "the connection is lost" in server.text()))
        return server, proxy, run

    def hold(self, environment, arguments, expected="holding"):
        """Starts a program that allocates memory and holds it, and tries again for each line of its input."""
        run = subprocess.Popen([os.path.join(self.build, "tests/e2e/rcuda_memory_quota"), "hold", *arguments],
                               env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.addCleanup(lambda: (run.kill(), run.communicate()))
        self.assertEqual(run.stdout.readline().strip(), expected)
        return run

    def check_taken(self, server, proxy, run, worker):
        """Checks that the disconnected program has lost its session to another one, and gets the reason when it is back."""
        self.assertTrue(eventually(lambda: worker not in server.sessions(self.build).values()))
        proxy.bring_up()
        self.check_lost(run, "its client was disconnected, and another program needed its place on ")
        self.assertRegex(server.text(), f"the session of worker {worker} ends: its client was disconnected.* [(]for a .* user root")

    # A disconnected session keeps its place until another program waits for it.
    def test_a_disconnected_session_ends_when_a_program_waits_for_its_place(self):
        server, proxy, run = self.disconnected("[limits.user]\nsessions = 1\n")
        worker = server.sessions(self.build)[run.pid]
        result = self.run_program([server.address()])
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, f"the session with worker {worker} has been disconnected for .* and counts against this "
                         f"limit: .*RCUDA_WAIT=60s.* rcuda-smi end SERVER {worker}")
        self.assertIn(run.pid, server.sessions(self.build))
        waited = self.run_program([server.address()], RCUDA_WAIT="60s")
        self.assert_works(waited)
        self.assertRegex(waited.stderr, "waiting at place 1 of the queue: .*; the server ends a disconnected session for this "
                         "program( 30s after it was disconnected)?, unless its client connects again\n")
        self.check_taken(server, proxy, run, worker)

    # An allocation of another program never waits, so it ends no disconnected session. That program prints one line about
    # the refusal.
    def test_a_disconnected_session_keeps_its_memory(self):
        server, proxy, run = self.disconnected('[limits.user]\ndevice_memory = "64M"\n', ["40"])
        environment = client_environment(self.build, [server], "tcp", RCUDA_WAIT="60s")
        other = self.hold(environment, ["40"], "out of memory")
        other.kill()
        err = other.communicate()[1]
        lines = [line for line in err.splitlines() if "asked for 40 MiB of device 0" in line]
        self.assertEqual(len(lines), 1, err)
        self.assertRegex(lines[0], "user root may use 64 MiB of it and 24 MiB are left.*raise device_memory")
        self.assertIn(run.pid, server.sessions(self.build))

    def test_a_disconnected_session_ends_when_a_lease_waits_for_its_device(self):
        server, proxy, run = self.disconnected("")
        worker = server.sessions(self.build)[run.pid]
        take = ("rcuda-lease", "take", f"127.0.0.1:{server.port}", "--devices", "=0", "--for", "1m", "--user", "1")
        refused = self.run_tool(*take)
        self.assertNotEqual(refused.returncode, 0)
        self.assertRegex(refused.stderr, rf"device 0 has a session of root \(worker {worker}, disconnected for .*--wait")
        self.assertIn(run.pid, server.sessions(self.build))
        taken = self.run_tool(*take, "--wait", "60s")
        self.assertEqual(taken.returncode, 0, taken.stderr)
        self.check_taken(server, proxy, run, worker)

    def attach(self, server, body):
        """The answer to an Attach; None if the connection ends without one."""
        with socket.create_connection(("127.0.0.1", int(server.port)), timeout=60) as connection:
            connection.sendall(fetch_ticket(connection) + body)
            try:
                return read_message(connection)
            except (EOFError, ConnectionResetError):
                return None

    # An eavesdropper sends the attempts that it has seen, the first and later ones, and attempts that it makes up.
    def test_nobody_else_takes_a_session_over(self):
        server = self.server()
        proxy = self.proxy(server, keeps=True)
        run = self.start(proxy)
        self.assertTrue(eventually(lambda: proxy.cuts >= CUTS))
        replayed = proxy.began_with(ATTACH)
        self.assertGreater(len(replayed), 10)
        for body in replayed:
            answer = self.attach(server, body)
            self.assertTrue(answer is None or answer[0] == REFUSAL, answer)
        guesses = [body[:-4] + (1000 + i).to_bytes(4, "little") for body in replayed[-5:] for i in range(200)]
        for body in guesses:
            answer = self.attach(server, body)
            self.assertTrue(answer is None or answer[0] == REFUSAL, answer)
        before = proxy.cuts
        self.assertTrue(eventually(lambda: proxy.cuts > before + 10))
        self.assertIsNone(run.poll())


if __name__ == "__main__":
    run_tests(globals(), "programs")
