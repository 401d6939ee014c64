#!/usr/bin/env python3
"""Workers that serve one session after the other: what a program leaves behind ends before the next
session of its user, or with its worker.

    reuse_test.py --build FOLDER --remains PROGRAM [unittest arguments]
"""

import os
import re
import signal
import subprocess
import unittest

from servers import client_environment, eventually, run_tests, Server

BUILD = REMAINS = None
# A server of root does not let a worker serve twice, so it runs as somebody else.
USER = 65534 if os.geteuid() == 0 else None
# What ends with the context, or is destroyed by the worker.
GOES = ["nothing", "module", "library", "streams_and_events", "page_locked", "staged", "context", "limits",
        "flags", "reset"]
# What lasts as long as a process, or leaves doubt.
STAYS = ["pool_memory", "pool_setting", "other_pool", "virtual_memory", "exported", "host_function", "graph",
         "error", "endless", "killed"]


class ReuseTest(unittest.TestCase):
    # Without a pool, every worker that starts is for a session.
    def server(self, pool="0", **environment):
        server = Server(BUILD, options=["--pool", pool], user=USER,
                        environment=dict({"RCUDA_LOG": "debug", "RCUDA_SERVER_POOL_TIME": "1h"}, **environment))
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        return server

    def start(self, server, transport, *arguments, **identity):
        return subprocess.Popen([REMAINS, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=client_environment(BUILD, [server], transport), **identity)

    def run_program(self, server, transport, *arguments, **identity):
        process = self.start(server, transport, *arguments, **identity)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, f"{arguments}: {err}{server.text()}")
        return out

    def leave(self, server, transport, what):
        if what != "killed":
            self.run_program(server, transport, "leave", what)
            return
        process = self.start(server, transport, "leave", what)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.kill()
        process.communicate()

    def starts(self, server):
        return len(re.findall(r"worker \d+ starts with base", server.text()))

    def is_quiet(self, server):
        """Whether every worker that started has ended or is idle."""
        return (not server.sessions(BUILD) and
                f", {len(server.workers())} idle worker" in server.status(BUILD))

    def check(self, server, transport, what, same_worker):
        clean = self.run_program(server, transport, "look")
        self.assertIn("words of others: 0\n", clean)
        for _ in range(2):
            self.assertTrue(eventually(lambda: self.is_quiet(server)), server.text())
            before = self.starts(server)
            self.leave(server, transport, what)
            self.assertTrue(eventually(lambda: self.is_quiet(server)), server.text())
            self.assertEqual(self.run_program(server, transport, "look"), clean)
            if same_worker is not None:
                self.assertEqual(self.starts(server) - before, 0 if same_worker else 1, server.text())

    def test_what_goes(self):
        for transport in "shm", "tcp":
            server = self.server()
            for what in GOES:
                with self.subTest(transport=transport, what=what):
                    self.check(server, transport, what, True)

    def test_what_stays(self):
        # Each with a server of its own: a worker that another case has left would be taken instead of a new one.
        for transport in "shm", "tcp":
            for what in STAYS:
                with self.subTest(transport=transport, what=what):
                    server = self.server()
                    self.check(server, transport, what, False)
                    server.stop()  # at once, because there are many; the cleanup looks at the outcome

    def test_managed_memory(self):
        # Over shared memory it is registered memory of the client.
        for transport in "shm", "tcp":
            self.check(self.server(), transport, "managed", None)

    @unittest.skipIf(os.geteuid() != 0, "only root can run programs of two users")
    def test_users_do_not_share_a_worker(self):
        server = self.server()
        for identity in 2 * [{}, dict(user=USER, group=USER, extra_groups=[])]:
            self.run_program(server, "shm", "leave", "nothing", **identity)
            self.assertTrue(eventually(lambda: self.is_quiet(server)), server.text())
        self.assertEqual(self.starts(server), 2, server.text())
        self.assertEqual(len(server.workers()), 2)

    def test_the_setting(self):
        server = self.server(RCUDA_SERVER_REUSE="0")
        for _ in range(3):
            self.run_program(server, "shm", "leave", "nothing")
        self.assertEqual(self.starts(server), 3)

    @unittest.skipIf(os.geteuid() != 0, "only root can run a server of root")
    def test_a_server_of_root_does_not(self):
        server = Server(BUILD, options=["--pool", "0"], environment={"RCUDA_LOG": "debug"})
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        for _ in range(2):
            self.run_program(server, "shm", "leave", "nothing")
        self.assertEqual(self.starts(server), 2)
        # They end at once: nobody is asked whether they may go on.
        self.assertTrue(eventually(lambda: not server.workers()))
        self.assertNotIn("does not return", server.text())

    def test_a_client_waits_for_a_worker_that_is_being_cleaned(self):
        # Another worker would take longer.
        server = self.server(SOFTGPU_CONTEXT_END_MS="1000", SOFTGPU_INIT_MS="4000")
        self.run_program(server, "shm", "leave", "module")
        # Until the worker has said that it can be cleaned, the next client gets another one.
        self.assertTrue(eventually(lambda: not server.sessions(BUILD)), server.text())
        self.run_program(server, "shm", "look")
        self.assertEqual(self.starts(server), 1, server.text())

    def test_clients_that_are_killed_while_they_wait_for_cleaning(self):
        server = self.server(SOFTGPU_CONTEXT_END_MS="1000")
        clean = self.run_program(server, "shm", "look")
        for _ in range(3):
            waiting = [self.start(server, "shm", "look") for _ in range(3)]
            for process in waiting:
                process.kill()
                process.communicate()
            self.run_program(server, "shm", "leave", "module")
        self.assertEqual(self.run_program(server, "shm", "look"), clean)

    def test_a_worker_that_is_killed_while_it_is_cleaned(self):
        server = self.server(SOFTGPU_CONTEXT_END_MS="60000")
        self.run_program(server, "shm", "leave", "module")
        self.assertTrue(eventually(lambda: not server.sessions(BUILD)))
        waiting = self.start(server, "shm", "leave", "nothing")
        os.kill(server.workers()[0], signal.SIGKILL)
        waiting.communicate(timeout=120)
        self.assertEqual(waiting.returncode, 0, server.text())
        self.assertEqual(self.starts(server), 2)

    def test_a_reset_that_hangs_ends_the_worker(self):
        server = self.server(SOFTGPU_CONTEXT_END_MS="60000", RCUDA_SERVER_STOP_TIMEOUT="1s")
        self.run_program(server, "shm", "leave", "module")
        self.run_program(server, "shm", "leave", "nothing")
        self.assertEqual(self.starts(server), 2)
        self.assertTrue(eventually(lambda: "does not return" in server.text()), server.text())

    def test_kept_workers_end(self):
        server = self.server(RCUDA_SERVER_POOL_TIME="200ms")
        self.run_program(server, "shm", "leave", "module")
        self.assertTrue(eventually(lambda: not server.workers()), server.text())

    def crowd(self, server, size, before=lambda: None):
        """So many clients of one user come at once, right after `before` and beside a program that stays. Returns
        how many workers start for them until the first of these is ready, or some of them have been served."""
        crowd = [self.start(server, "shm", "told", "leave", "nothing", stdin=subprocess.PIPE) for _ in range(size)]
        for process in crowd:
            self.assertEqual(process.stdout.readline(), "waits\n")
        holder = self.start(server, "shm", "leave", "killed")
        self.assertEqual(holder.stdout.readline(), "ready\n")
        before()
        known = len(server.text())
        server.process.send_signal(signal.SIGSTOP)
        for process in crowd:
            process.stdin.write("go\n")
            process.stdin.flush()
        self.assertTrue(eventually(lambda: server.connecting() == size))
        server.process.send_signal(signal.SIGCONT)
        self.assertTrue(eventually(lambda: "starting -> idle" in server.text()[known:]), server.text())
        holder.kill()
        for process in [holder, *crowd]:
            err = process.communicate(timeout=120)[1]
            self.assertEqual(process.returncode, -9 if process is holder else 0, err + server.text())
        early = server.text()[known:].split("starting -> idle")[0].split("cleaning -> idle")[:5]
        return sum(text.count(" starts with base") for text in early)

    def test_a_crowd_waits_for_the_workers_that_are_there(self):
        server = self.server(SOFTGPU_INIT_MS="3000")

        def before():
            self.run_program(server, "shm", "leave", "nothing")
            self.assertTrue(eventually(lambda: "cleaning -> idle" in server.text()), server.text())
        self.assertEqual(self.crowd(server, 16, before), 1, server.text())

    def test_a_crowd_does_not_wait_for_sessions_that_may_be_long(self):
        server = self.server(SOFTGPU_INIT_MS="3000")
        self.assertGreater(self.crowd(server, 16), 1, server.text())

    def test_many_at_once(self):
        server = self.server("2")
        clean = self.run_program(server, "shm", "look")
        for _ in range(3):
            processes = [self.start(server, "shm", "leave", what) for what in 4 * ["module", "nothing"]]
            for process in processes:
                err = process.communicate(timeout=120)[1]
                self.assertEqual(process.returncode, 0, err + server.text())
        self.assertTrue(eventually(lambda: self.is_quiet(server)), server.text())
        self.assertEqual(self.run_program(server, "shm", "look"), clean)


if __name__ == "__main__":
    run_tests(globals(), "remains")
