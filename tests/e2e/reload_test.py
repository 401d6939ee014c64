#!/usr/bin/env python3
"""A running server reads its settings again after SIGHUP or rcuda-smi reload: what changes, what does not, and what the
log says about it.

    reload_test.py --build FOLDER [unittest arguments]
"""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

from servers import (audit_lines, Server, client_environment, eventually, local_connection, make_token, message,
                     read_message, run_tests, WITH_MEMORY)

BUILD = None

# Uses the GPU and prints "used" for each line of its input, until the input ends.
SESSION = WITH_MEMORY + """
print("ready", flush=True)
for line in sys.stdin:
    assert cuda.cuMemsetD32_v2(memory, ctypes.c_uint32(7), ctypes.c_size_t(8)) == 0 and cuda.cuCtxSynchronize() == 0
    print("used", flush=True)
"""


class ReloadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.config = os.path.join(self.folder, "server.toml")

    def write(self, text):
        with open(self.config, "w") as file:
            file.write(text)

    def server(self, text, *options, **settings):
        self.write(text)
        # An empty variable counts as absent, so the file may set the level of the log.
        server = Server(BUILD, options=("--config", self.config, *options), environment=dict(RCUDA_LOG="", **settings))

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def start_session(self, server, **variables):
        program = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=client_environment(BUILD, [server], "tcp", **variables))
        for pipe in (program.stdin, program.stdout, program.stderr):
            self.addCleanup(pipe.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program

    def session(self, server, **variables):
        program = self.start_session(server, **variables)
        self.assertEqual(program.stdout.readline(), "ready\n", server.text())
        return program

    def use(self, program):
        program.stdin.write("\n")
        program.stdin.flush()
        self.assertEqual(program.stdout.readline(), "used\n")

    def refusal(self, server):
        refused = subprocess.run([sys.executable, "-c", SESSION], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, env=client_environment(BUILD, [server], "tcp"))
        self.assertNotEqual(refused.returncode, 0)
        return refused.stderr

    def hang_up(self, server, line):
        """Sends SIGHUP, waits for a new line of the log with this text, and returns that line."""
        def lines():
            return [found for found in server.text().splitlines() if line in found]
        before = len(lines())
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(eventually(lambda: len(lines()) > before), server.text())
        return lines()[-1]

    def smi(self, server, *arguments):
        return subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), arguments[0], f"127.0.0.1:{server.port}",
                               *arguments[1:]], capture_output=True, text=True, timeout=120)

    def test_new_limits_hold_for_new_sessions_and_the_log_names_what_changed(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        first = self.session(server)
        self.assertIn("user", self.refusal(server))
        waits = self.start_session(server, RCUDA_WAIT="10min")
        self.assertTrue(eventually(lambda: ", 1 waiting, " in server.status(BUILD)), server.status(BUILD))
        self.write('staging_bytes = "32M"\nport = 1234\nmax_sessions = 7\n[limits.user]\nsessions = 2\n')
        line = self.hang_up(server, "the settings are reloaded")
        self.assertTrue(line.endswith("after SIGHUP; changed: max_sessions, [limits]"), line)
        # The option --port wins, so the port has not changed.
        self.assertIn("changed settings that need a restart of the server: staging_bytes\n", server.text())
        self.assertEqual(waits.stdout.readline(), "ready\n")  # its request was waiting before the reload
        self.assertIn("2 of 7 sessions", server.status(BUILD))
        self.use(first)
        self.use(waits)
        self.assertIn("2 sessions, as many as it may have", self.refusal(server))
        self.assertTrue(self.hang_up(server, "the settings are reloaded").endswith("; nothing changed"))

    def test_a_limit_of_memory_where_there_was_none(self):
        server = self.server("")
        first = self.session(server)
        self.write('[limits.user]\ndevice_memory = "2M"\n')
        self.hang_up(server, "changed: [limits]")
        self.use(first)
        self.assertIn("AssertionError", self.refusal(server))  # its 3 MiB exceed the limit
        self.write('[limits.user]\ndevice_memory = "5M"\n')
        self.hang_up(server, "changed: [limits]")
        second = self.session(server)  # memory of the first session, which began without a limit, does not count
        self.assertIn("AssertionError", self.refusal(server))
        for program in (first, second):
            self.use(program)
            self.assertEqual(program.communicate(timeout=60)[1], "")

    def test_an_unusable_file_changes_nothing(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        first = self.session(server)
        for text, line, word in (("max_sessions = 5\nusers = [", 2, ""),
                                 ("max_sessions = many\n", 1, ""),
                                 ('max_sessions = 5\n[limits.user]\nsessions = "some"\n', 3, "sessions"),
                                 ('max_sessions = 5\nusers = "no-such-user"\n', None, "no-such-user"),
                                 ('max_sessions = 5\naudit = "/nowhere/audit"\n', None, "/nowhere/audit"),
                                 ('max_sessions = 5\nlog = "loud"\n', None, "loud"),
                                 ('nonsense = 5\n', None, "nonsense")):
            with self.subTest(text):
                self.write(text)
                said = self.hang_up(server, "cannot reload the settings after SIGHUP; they keep their values")
                before = len(server.text())
                asked = self.smi(server, "reload")
                self.assertEqual(asked.returncode, 1)
                logged = server.text()[before:]
                self.assertEqual(logged.count("\n"), 1, logged)
                self.assertIn(" refused: ", logged)
                for answer in (said, asked.stderr):
                    self.assertIn(word, answer)
                    if line:
                        self.assertIn(f"{self.config}:{line}", answer)
        os.unlink(self.config)
        self.hang_up(server, "cannot reload the settings")
        self.assertIn("1 of 256 sessions", server.status(BUILD))
        self.assertIn("as many as it may have", self.refusal(server))
        self.use(first)

    def test_the_level_of_the_log(self):
        server = self.server('log = "info"\n')
        first = self.session(server)
        idle = set(server.workers())
        self.write('log = "debug"\n')
        self.hang_up(server, "changed: log")
        self.assertTrue(eventually(lambda: " -> idle after " in server.text()), server.text())
        # A worker keeps the log level with which it started, so the idle ones are replaced. A session keeps its worker.
        self.assertEqual(idle & set(server.workers()), {server.sessions(BUILD)[first.pid]})
        before = len(server.text())
        self.use(self.session(server))
        self.assertRegex(server.text()[before:], r"rcuda-worker\[\d+\] debug: ")
        self.use(first)
        self.write('log = "warn"\n')
        self.hang_up(server, "changed: log")
        server.settle()
        before = len(server.text())
        self.session(server).kill()
        server.settle()
        self.assertNotIn("idle -> busy", server.text()[before:])

    def test_the_audit_goes_to_the_file_that_has_the_name_now(self):
        audit, moved, other = (os.path.join(self.folder, name) for name in ("audit", "audit.1", "other"))
        server = self.server(f'audit = "{audit}"\n')
        first = self.session(server)
        os.rename(audit, moved)
        self.hang_up(server, "nothing changed")
        second = self.session(server)
        self.assertEqual([line["event"] for line in audit_lines(moved)], ["begin"])
        self.assertEqual([line["event"] for line in audit_lines(audit)], ["control", "begin"])
        self.assertEqual(audit_lines(audit)[0]["what"], "reload")
        self.write(f'audit = "{other}"\n')
        self.assertEqual(self.smi(server, "reload").stdout, "changed: audit\n")
        second.communicate(timeout=60)
        first.communicate(timeout=60)
        self.assertTrue(eventually(lambda: len(audit_lines(other, "session")) == 2))
        self.assertEqual(len(audit_lines(audit)), 2)
        reload = audit_lines(other)[0]
        self.assertEqual((reload["event"], reload["what"], reload["uid"]), ("control", "reload", os.geteuid()))
        self.write("")
        self.smi(server, "reload")
        self.session(server)
        self.assertEqual(len(audit_lines(other)), 3)

    def test_operators_alone_may_reload(self):
        for role, is_operator in (("observer", False), ("operator", True)):
            with self.subTest(role):
                folder = os.path.join(self.folder, role)
                os.mkdir(folder)
                token = make_token(BUILD, folder, "--role", role)
                server = self.server("", **token)
                self.write("max_sessions = 3\n")
                asked = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), "reload", f"127.0.0.1:{server.port}"],
                                       capture_output=True, text=True, timeout=120,
                                       env=dict(os.environ, RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=folder + "/token"))
                self.assertEqual(asked.returncode, 0 if is_operator else 1, asked.stderr)
                self.assertIn("changed: max_sessions" if is_operator else "need the role operator",
                              asked.stdout + asked.stderr)

    def test_workers_and_doors_ignore_the_signal(self):
        token = make_token(BUILD, self.folder)
        server = self.server("", **token)
        program = self.session(server, RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=os.path.join(self.folder, "token"))
        children = server.children()
        self.assertTrue(server.doors() and server.workers())
        for child in children:
            os.kill(child, signal.SIGHUP)
        self.use(program)
        self.assertLessEqual(set(server.workers()), set(children))
        self.assertNotIn("ended with", server.text())

    def test_a_server_that_ignored_the_signal_when_it_began_takes_it(self):
        """nohup starts the server with SIGHUP ignored."""
        self.write("")
        server = Server(BUILD, options=("--config", self.config), environment=dict(RCUDA_LOG=""), wrapper=("nohup",))
        self.addCleanup(server.stop)
        self.hang_up(server, "the settings are reloaded")

    def test_a_client_that_introduces_itself_is_served_over_a_reload(self):
        server = self.server("")
        with local_connection(server.port) as connection:
            self.hang_up(server, "the settings are reloaded")
            query = message(5)  # StatusQuery
            connection.sendall(query[:2])
            self.hang_up(server, "the settings are reloaded")
            connection.sendall(query[2:])
            self.assertEqual(read_message(connection)[0], 6)  # Status


if __name__ == "__main__":
    run_tests(globals())
