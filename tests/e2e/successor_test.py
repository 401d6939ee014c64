#!/usr/bin/env python3
"""An upgrade replaces the binary of a running server, and after a reload the new build takes over while sessions continue.
The new build lacks some commands (tests/support/skewed_commands.cpp).

    successor_test.py --build FOLDER --softgpu LIBRARY [unittest arguments]
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from servers import (audit_lines, Server, client_environment, eventually, make_token, old_kernel, run_tests)

BUILD = SOFTGPU = None

# Allocates MIB (3). Prints whether its server is of the other build, which lacks a command. Then, for each line of its input,
# allocates 40 MiB ("allocate"), or writes the number to memory (not for "read") and reads it.
SESSION = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory, words = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_uint32 * 2)()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(os.environ.get("MIB", 3)) << 20)) == 0
print("other" if cuda.cuMemsetD16_v2(memory, ctypes.c_uint16(3), ctypes.c_size_t(4)) == 801 else "own", flush=True)
for line in sys.stdin:
    if line.strip() == "allocate":
        print(cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(40 << 20)), flush=True)
        continue
    if line.strip() != "read":
        assert cuda.cuMemsetD32_v2(memory, ctypes.c_uint32(int(line)), ctypes.c_size_t(2)) == 0
    assert cuda.cuMemcpyDtoH_v2(words, memory, ctypes.c_size_t(8)) == 0
    print(*words, flush=True)
"""


class SuccessorTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.binary, self.config = (os.path.join(self.folder, name) for name in ("rcuda-server", "server.toml"))
        self.install("bin/rcuda-server")

    def install(self, binary=None, text=None):
        """Replaces the binary as dpkg does: the running process keeps the old file."""
        new = self.binary + ".new"
        if text is None:
            shutil.copy(os.path.join(BUILD, binary), new)
        else:
            with open(new, "w") as file:
                file.write(text)
            os.chmod(new, 0o755)
        os.rename(new, self.binary)

    def upgrade(self):
        self.install("tests/e2e/rcuda-server-skewed")

    def server(self, text="", *options, wrapper=(), other_forms=False, **settings):
        with open(self.config, "w") as file:
            file.write(text)
        server = Server(BUILD, driver=SOFTGPU, binary=self.binary, options=("--config", self.config, *options),
                        # With this, the messages of both builds have the same form. Otherwise the other build does
                        # not understand what it takes over.
                        environment=dict({} if other_forms else {"SKEWED_GPUS_ONLY": "1"}, **settings),
                        wrapper=wrapper)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def start_session(self, server, transport="tcp", **variables):
        program = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=client_environment(BUILD, [server], transport, **variables))
        for pipe in (program.stdin, program.stdout, program.stderr):
            self.addCleanup(pipe.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        return program

    def session(self, server, build, transport="tcp", **variables):
        program = self.start_session(server, transport, **variables)
        line = program.stdout.readline()
        self.assertEqual(line, build + "\n", server.text() if line else program.stderr.read() + server.text())
        return program

    def use(self, program, number=7):
        program.stdin.write(f"{number}\n")
        program.stdin.flush()
        self.assertEqual(program.stdout.readline(), f"{number} {number}\n")

    def refusal(self, server):
        refused = subprocess.run([sys.executable, "-c", SESSION], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, env=client_environment(BUILD, [server], "tcp"))
        self.assertNotEqual(refused.returncode, 0)
        return refused.stderr

    def reload(self, server, says="this build has taken over"):
        before = server.text().count(says)
        server.process.send_signal(signal.SIGHUP)
        self.assertTrue(eventually(lambda: server.text().count(says) > before), server.text())
        self.assertIsNone(server.process.poll())

    def smi(self, server, *arguments):
        return subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), arguments[0], f"127.0.0.1:{server.port}",
                               *map(str, arguments[1:])], capture_output=True, text=True, timeout=120)

    def test_sessions_go_on_and_new_ones_are_of_the_new_build(self):
        audit = os.path.join(self.folder, "audit")
        server = self.server(f'audit = "{audit}"\n')
        old = [self.session(server, "own", transport) for transport in ("shm", "tcp")]
        workers = server.sessions(BUILD)
        self.upgrade()
        self.reload(server)
        self.assertIn("with 2 session(s)", server.text())
        for program in old:
            self.use(program)
        new = [self.session(server, "other", transport) for transport in ("shm", "tcp")]
        self.assertLessEqual(workers.items(), server.sessions(BUILD).items())
        self.assertEqual(len(server.sessions(BUILD)), 4)
        for program in old + new:
            self.use(program, 9)
        # The new daemon is notified of each end of a session: of its program, by an operator, and of its worker.
        self.assertEqual(old[0].communicate(timeout=60)[1], "")
        ended = self.smi(server, "end", workers[old[1].pid])
        self.assertEqual(ended.returncode, 0, ended.stderr)
        os.kill(server.sessions(BUILD)[new[0].pid], signal.SIGKILL)
        self.assertTrue(eventually(lambda: set(server.sessions(BUILD)) == {new[1].pid}), server.status(BUILD))
        self.assertTrue(eventually(lambda: len(audit_lines(audit, "session")) == 3))
        ends = {line["worker"]: line["end"] for line in audit_lines(audit, "session")}
        self.assertEqual(ends[workers[old[0].pid]], "ended by the client")
        self.assertIn("ended the session", ends[workers[old[1].pid]])
        self.use(new[1])

    def test_parked_sessions_stay_parked_and_wake(self):
        server = self.server(SOFTGPU_DEVICES="2")
        first, second = self.session(server, "own", "shm"), self.session(server, "own")
        workers = server.sessions(BUILD)
        for program, number in ((first, 5), (second, 6)):
            self.use(program, number)
        for command, program in (("park", first), ("move", second)):
            for _ in range(100):  # repeated, because the session's last work may not have ended yet
                done = self.smi(server, command, workers[program.pid], *(["--to", "1"] if command == "move" else []))
                if "work in progress" not in done.stderr:
                    break
            self.assertEqual(done.returncode, 0, done.stderr)
        shown = lambda: {one["pid"]: (one["park"], one["devices"]) for one in
                         json.loads(subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), "--json", f"127.0.0.1:{server.port}"],
                                                   capture_output=True, text=True, check=True).stdout)[0]["sessions"]}
        before = {first.pid: ("parked", [0]), second.pid: ("parked", [1])}
        self.assertEqual(shown(), before)
        self.upgrade()
        self.reload(server)
        self.assertEqual(shown(), before)
        for program, number in ((first, 5), (second, 6)):
            program.stdin.write("read\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), f"{number} {number}\n")
        self.assertEqual(shown(), {first.pid: ("", [0]), second.pid: ("", [1])})
        parked = self.smi(server, "park", workers[second.pid])
        self.assertIn("parked for", parked.stdout, parked.stderr)
        self.use(second, 8)

    def oversubscribed(self):
        return self.server('oversubscribe = 2.0\nstay_awake = "2s"\n', SOFTGPU_MEMORY="64M",
                           SOFTGPU_SHARED_MEMORY=os.path.join(self.folder, "account"))

    def send(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()

    def test_an_allocation_that_waits_for_room_gets_it(self):
        server = self.oversubscribed()
        idle, program = self.session(server, "own", MIB="40"), self.session(server, "own")
        self.use(idle, 5)
        self.send(program, "allocate")
        time.sleep(0.3)
        self.upgrade()
        self.reload(server)
        self.assertEqual(program.stdout.readline(), "0\n", server.text())
        self.use(program, 6)
        program.communicate(timeout=60)
        self.send(idle, "read")
        self.assertEqual(idle.stdout.readline(), "5 5\n", server.text())

    def test_a_wake_that_waits_for_room_gets_it(self):
        server = self.oversubscribed()
        first = self.session(server, "own", MIB="40")
        self.use(first, 5)
        second = self.session(server, "own", MIB="40")  # parks the first
        self.use(second, 6)
        self.send(first, "read")
        time.sleep(0.3)
        self.upgrade()
        self.reload(server)
        self.assertEqual(first.stdout.readline(), "5 5\n", server.text())
        self.send(second, "read")
        self.assertEqual(second.stdout.readline(), "6 6\n", server.text())

    def test_limits_count_sessions_of_both_builds(self):
        server = self.server('[limits.user]\nsessions = 3\ndevice_memory = "8M"\n')
        old = self.session(server, "own")
        second = self.session(server, "own")
        self.upgrade()
        self.reload(server)
        self.assertIn("AssertionError", self.refusal(server))  # 4 + 4 + 4 MiB
        self.assertEqual(second.communicate(timeout=60)[1], "")
        new = self.session(server, "other")
        self.assertTrue(eventually(lambda: len(server.sessions(BUILD)) == 2))
        self.assertIn("AssertionError", self.refusal(server))
        self.use(old)
        self.use(new)

    def test_a_client_in_the_queue_keeps_its_place(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        old = self.session(server, "own")
        waits = self.start_session(server, RCUDA_WAIT="10min")
        self.assertTrue(eventually(lambda: "1 waiting, " in server.status(BUILD)))
        self.upgrade()
        self.reload(server, "it takes over when no client waits for a session")
        self.assertNotIn("this build has taken over", server.text())
        old.communicate(timeout=60)
        self.assertIn(waits.stdout.readline(), ("own\n", "other\n"))
        self.assertTrue(eventually(lambda: "this build has taken over" in server.text()), server.text())
        self.use(waits)

    def test_leases_and_a_drain_go_on(self):
        server = self.server("", SOFTGPU_DEVICES="2")
        def lease(*arguments):
            done = subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), arguments[0], f"127.0.0.1:{server.port}",
                                   *arguments[1:]], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout
        key = dict(line.split("=", 1) for line in
                   lease("take", "--devices", "=0", "--for", "never", "--job", "of a test").splitlines())["RCUDA_LEASE"]
        self.assertIn("lease", self.refusal(server))
        old = self.session(server, "own", RCUDA_LEASE=key)
        self.upgrade()
        self.reload(server)
        self.assertIn("lease", self.refusal(server))
        new = self.session(server, "other", RCUDA_LEASE=key)
        self.assertEqual(self.smi(server, "drain", "--no-wait").returncode, 0)
        self.install("bin/rcuda-server")
        self.reload(server)
        self.assertIn("draining", self.refusal(server))
        for program in (old, new):
            self.use(program)
            program.communicate(timeout=60)
        self.assertEqual(server.process.wait(timeout=60), 0)

    def test_a_build_that_cannot_take_over_changes_nothing(self):
        server = self.server("max_sessions = 3\n", other_forms=True)
        old = self.session(server, "own")
        self.upgrade()
        self.reload(server, f"{self.binary} is a build that cannot continue the sessions of the running build")
        for status, why in ((3, "is a build that cannot continue the sessions of the running build"),
                            (78, "does not start with these settings"), (1, "does not start with these settings")):
            self.install(text=f"#!/bin/sh\nexit {status}\n")
            self.reload(server, f"the server continues with its running build: {self.binary} {why}")
        self.install(text="no program\n")
        asked = self.smi(server, "reload")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("the server continues with its running build: ", asked.stdout)
        os.unlink(self.binary)
        self.reload(server, "the settings are reloaded")
        self.use(old)
        self.session(server, "own")

    def test_settings_that_need_a_restart_wait_for_it(self):
        server = self.server('session_processes = 100\nmax_sessions = 3\n')
        with open(self.config, "w") as file:
            file.write('session_processes = 200\nmax_sessions = 4\n')
        self.upgrade()
        self.reload(server)
        self.assertIn("0 of 4 sessions", server.status(BUILD))
        self.reload(server, "changed settings that need a restart of the server: session_processes")

    def test_nobody_is_refused_while_builds_change(self):
        for closer in (False, True):
            with self.subTest(closer=closer):
                self.install("bin/rcuda-server")
                wrapper = old_kernel(self.folder) if closer else ()
                server = self.server("", wrapper=wrapper, **make_token(BUILD, self.folder))
                stops, failures, served = threading.Event(), [], []

                def keep_coming(**variables):
                    while not stops.is_set():
                        program = subprocess.run([sys.executable, "-c", SESSION], input="5\n", capture_output=True,
                                                 text=True, env=client_environment(BUILD, [server], **variables))
                        served.append(program.stdout)
                        if program.returncode != 0:
                            failures.append(program.stderr)
                tls = dict(RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=os.path.join(self.folder, "token"))
                threads = [threading.Thread(target=keep_coming, kwargs=kwargs) for kwargs in
                           (dict(transport="shm"), dict(transport="tcp"), dict(transport="tcp", **tls))]
                for thread in threads:
                    thread.start()
                for binary in ("tests/e2e/rcuda-server-skewed", "bin/rcuda-server") * 2:
                    self.install(binary)
                    self.reload(server)
                stops.set()
                for thread in threads:
                    thread.join()
                self.assertEqual(failures, [], server.text())
                self.assertGreaterEqual(len(served), 3)
                self.assertTrue(eventually(lambda: not server.sessions(BUILD)))


if __name__ == "__main__":
    run_tests(globals(), "softgpu")
