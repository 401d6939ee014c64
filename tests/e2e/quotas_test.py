#!/usr/bin/env python3
"""Limits of the server's configuration file: who gets a session, who waits for one and in which order,
which messages the others get, and how much memory sessions get.

    quotas_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from servers import audit_lines, client_environment, eventually, make_token, run_tests, Server, UNUSABLE_SETTINGS

BUILD = PROGRAMS = None
TRANSPORTS = ("shm", "tcp", "tls")  # the last one: TCP as from another machine, with a token
NOBODY = 65534
PRINT_MULTIPROCESSORS = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, 0) == 0
print(count.value)
"""

# Prints the error of a kernel that fails, and then the first result that differs from it.
FAIL_AND_LIVE_ON = """
import ctypes, time
cuda, context, module, function = ctypes.CDLL("libcuda.so.1"), *(ctypes.c_void_p() for _ in range(3))
ptx = b".version 7.0 .target sm_70 .address_size 64 .visible .entry fail() { trap; }"
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuModuleLoadData(ctypes.byref(module), ptx) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fail") == 0
cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
first = last = cuda.cuCtxSynchronize()
while last == first:
    time.sleep(0.02)
    last = cuda.cuCtxSynchronize()
print(first, last)
"""


# Exports 40 MiB to a process that already has 40 MiB, and releases the exported memory. Prints the results.
SHARE = """
import ctypes, os, struct, subprocess, sys
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
handle, descriptor, bytes = ctypes.c_uint64(), ctypes.c_int(int(sys.argv[1])), ctypes.c_size_t(40 << 20)
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
def allocate():
    return cuda.cuMemAlloc_v2(ctypes.byref(address), bytes)
def import_it():
    return cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(descriptor.value), 1)
if descriptor.value >= 0:
    assert allocate() == 0
    refused = import_it()
    assert cuda.cuMemFree_v2(address) == 0
    print(refused, import_it(), import_it(), allocate(), flush=True)
else:
    properties = struct.pack("<iiiiQQ", 1, 1, 1, 0, 0, 0)  # pinned, by descriptor, on device 0
    assert cuda.cuMemCreate(ctypes.byref(handle), bytes, properties, ctypes.c_ulonglong(0)) == 0
    assert cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, ctypes.c_ulonglong(0)) == 0
    subprocess.run([sys.executable, *sys.orig_argv[1:-1], str(descriptor.value)], check=True,
                   pass_fds=[descriptor.value])
    assert cuda.cuMemRelease(handle) == 0
    print(allocate())
"""


class QuotasTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def server(self, rules="", options=(), **more):
        with open(self.path("server.toml"), "w") as file:
            file.write(rules)
        server = Server(BUILD, options=["--config", self.path("server.toml"), "--tokens", self.path("tokens"),
                                        "--certificate", self.path("server.pem"), "--users", "root", *options], **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def token(self):
        if not os.path.exists(self.path("token")):
            make_token(BUILD, os.path.dirname(self.path("token")))
        return self.path("token")

    def environment(self, server, transport, **more):
        security = dict(RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=self.token()) if transport == "tls" else {}
        servers = server if isinstance(server, list) else [server]
        return client_environment(BUILD, servers, transport.replace("tls", "tcp"), **security, **more)

    def start(self, server, transport, wait="", devices=None, program=None, arguments=(), stdin=None):
        """Starts a program with a session, or one that waits for a session. Its stderr goes to a file."""
        environment = self.environment(server, transport, RCUDA_WAIT=wait)
        if devices:
            environment["RCUDA_DEVICES"] = ",".join(server.address(gpu) for gpu in devices)
        log = tempfile.TemporaryFile("w+")
        self.addCleanup(log.close)
        process = subprocess.Popen([program or os.path.join(BUILD, "tests/e2e/endless"), *arguments],
                                   env=environment, stdin=stdin, stdout=subprocess.PIPE, stderr=log,
                                   text=True)
        process.log = log
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_session(self, server, transport, **more):
        process = self.start(server, transport, **more)
        self.assertEqual(process.stdout.readline(), "running\n", self.said(process) + server.text())
        return process

    def said(self, process):
        with open(f"/proc/self/fd/{process.log.fileno()}") as log:
            return log.read()

    def end(self, process):
        process.kill()
        process.wait()

    def check_waits(self, process, *texts):
        self.assertTrue(eventually(lambda: "waiting at place" in self.said(process)), self.said(process))
        lines = [line for line in self.said(process).splitlines() if "waiting" in line]
        for text in texts:
            self.assertIn(text, lines[0])

    def check_refused(self, server, transport, *texts, **more):
        process = self.start(server, transport, program=os.path.join(PROGRAMS, "vector_add"), **more)
        self.assertEqual(process.wait(timeout=120), 1)
        said = self.said(process)
        self.assertIn("cudaErrorNoDevice", said)
        line, = [line for line in said.splitlines() if "rcuda[" in line and "waiting at place" not in line]
        for text in texts:
            self.assertIn(text, line)

    def waiting(self, server):
        text = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1@{server.port}"],
                              capture_output=True, text=True, check=True).stdout
        found = re.search(r", (\d+) waiting, ", text)
        return int(found[1]) if found else 0

    def test_a_user_has_no_more_sessions_than_it_may(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        self.start_session(server, "tcp")
        for transport in TRANSPORTS:
            self.check_refused(server, transport, "has 1 session, as many as it may have",
                               "(sessions of [limits.user] in", "server.toml:2)",
                               "RCUDA_WAIT=60s", "raise the limit on the server")

    # A session ends a moment after its program. The next program starts in that moment.
    def test_programs_that_run_one_after_the_other_need_one_place(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        for transport in TRANSPORTS:
            for _ in range(10):
                program = self.start(server, transport, program=os.path.join(PROGRAMS, "vector_add"))
                self.assertEqual(program.wait(timeout=120), 0, self.said(program))

    def test_what_can_never_fit_is_refused_also_if_the_program_would_wait(self):
        server = self.server("[limits.session]\ndevices = 1\n[limits.user]\ndevices = 1\n",
                             environment={"SOFTGPU_DEVICES": "2"})
        for transport in TRANSPORTS:
            self.check_refused(server, transport, "asks for 2 devices, and a session may have 1",
                               "RCUDA_DEVICES", devices=[0, 1], wait="1h")

    def test_the_own_table_of_a_user_counts(self):
        server = self.server(f"[limits.user]\nsessions = 1\n[limits.users.{os.geteuid()}]\nsessions = 2\n"
                             f"[limits.groups.{os.getegid()}]\nsessions = 3\n")
        for transport in ("shm", "tls"):
            self.start_session(server, transport)
        self.check_refused(server, "tcp", "has 2 sessions", f"[limits.users.{os.geteuid()}]")

    def test_programs_that_wait_get_their_turn_in_order(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        for transport in TRANSPORTS:
            with self.subTest(transport=transport):
                first = self.start_session(server, transport)
                second = self.start(server, transport, wait="10m")
                self.check_waits(second, f"127.0.0.1:{server.port}: waiting at place 1 of the queue: user ",
                                 "has 1 session, as many as it may have")
                third = self.start(server, transport, wait="10m")
                self.check_waits(third, "place 2 of the queue: ")
                self.assertEqual(self.waiting(server), 2)
                self.end(first)
                self.assertEqual(second.stdout.readline(), "running\n", self.said(second))
                self.assertTrue(eventually(lambda: "place 1 of the queue: " in self.said(third)), self.said(third))
                self.end(second)
                self.assertEqual(third.stdout.readline(), "running\n", self.said(third))
                self.end(third)
                self.assertTrue(eventually(lambda: not server.sessions(BUILD)))
                self.assertEqual(self.waiting(server), 0)

    def test_the_sessions_of_the_server_are_waited_for_as_well(self):
        server = self.server(options=["--max-sessions", "1"])
        first = self.start_session(server, "shm")
        second = self.start(server, "tcp", wait="10m")
        self.check_waits(second, "place 1 of the queue: all 1 sessions of the server are taken")
        self.end(first)
        self.assertEqual(second.stdout.readline(), "running\n", self.said(second))

    def test_a_program_that_waited_in_vain_is_told_for_what(self):
        server = self.server("[limits.user]\nsessions = 1\n", options=["--audit", self.path("audit")])
        self.start_session(server, "shm")
        for transport in TRANSPORTS:
            self.check_refused(server, transport, "the program waited 1s (RCUDA_WAIT) and is at place 1 of the queue: user ",
                               "has 1 session", "wait longer", wait="1s")
        refusals = audit_lines(self.path("audit"), "refused")
        self.assertEqual(len(refusals), len(TRANSPORTS))
        self.assertIn("the program waited 1s", refusals[1]["why"])

    def test_a_program_that_goes_away_leaves_the_queue(self):
        server = self.server("[limits.user]\nsessions = 1\n")
        first = self.start_session(server, "shm")
        second = self.start(server, "tcp", wait="10m")
        self.check_waits(second, "place 1 of the queue: ")
        third = self.start(server, "shm", wait="10m")
        self.check_waits(third, "place 2 of the queue: ")
        self.end(second)
        self.assertTrue(eventually(lambda: self.waiting(server) == 1))
        self.end(first)
        self.assertEqual(third.stdout.readline(), "running\n", self.said(third))

    def test_a_session_is_not_idle_while_its_program_waits_for_another_server(self):
        first = self.server("[limits.session]\nidle_time = \"2s\"\n")
        second = self.server(options=["--max-sessions", "1"])
        for transport in TRANSPORTS:
            with self.subTest(transport=transport):
                other = self.start_session(second, transport)
                program = self.start([first, second], transport, wait="10m")
                self.check_waits(program, "place 1 of the queue: ")
                time.sleep(3)
                self.end(other)
                self.assertEqual(program.stdout.readline(), "running\n", self.said(program) + first.text())
                self.assertNotIn("idle", self.said(program))
                self.end(program)
                self.assertTrue(eventually(lambda: not second.sessions(BUILD)))

    def test_a_killed_worker_leaves_nothing_taken(self):
        server = self.server("[limits.user]\nsessions = 1\ndevices = 1\ndevice_memory = \"8G\"\n"
                             "[limits.session]\nidle_time = \"1h\"\n",
                             options=["--audit", self.path("audit")])
        first = self.start_session(server, "tcp")
        second = self.start(server, "tcp", wait="10m")
        self.check_waits(second, "place 1 of the queue: ")
        os.kill(server.sessions(BUILD)[first.pid], signal.SIGKILL)
        self.assertEqual(second.stdout.readline(), "running\n", self.said(second))
        record, = audit_lines(self.path("audit"), "session")
        self.assertEqual(record["end"], "signal Killed")
        self.assertEqual([limits.get("device_memory") for limits in record["quota"]], [8 << 30, None])
        self.assertRegex(record["quota"][0]["of"], "^user ")
        self.assertEqual(record["quota"][1]["idle_seconds"], 3600)

    def meet_limits(self, what, server, transport, **more):
        program = os.path.join(BUILD, "tests/e2e/rcuda_memory_quota")
        result = subprocess.run([program, what], capture_output=True, text=True, timeout=120,
                                env=self.environment(server, transport, **more))
        self.assertEqual(result.returncode, 0, result.stderr + server.text())
        return result.stdout

    def test_a_session_gets_as_much_memory_as_it_may(self):
        server = self.server('[limits.session]\ndevice_memory = "64M"\nhost_memory = "32M"\n')
        for transport in TRANSPORTS:
            # Managed memory counts where it is, and over shm it is in the program.
            managed = "32 then out of memory, free 64" if transport == "shm" else "64 then out of memory, free 0"
            with self.subTest(transport=transport):
                self.assertEqual(self.meet_limits("fill", server, transport),
                                 "device 64 total 64 free 64\n"
                                 "plain 64 then out of memory, free 0\n"
                                 f"managed {managed}\n"
                                 "pooled 64 then out of memory, free 0\n"
                                 "mapped 64 then out of memory, free 0\n"
                                 "array 64 then out of memory, free 0\n"
                                 "host 32 then out of memory, free 64\n")
        self.assertEqual(server.text().count("each session may use 64 MiB of it"), len(TRANSPORTS))
        self.assertIn("raise device_memory", server.text())

    def test_digests_of_managed_memory_count_as_host_memory(self):
        server = self.server('[limits.session]\ndevice_memory = "512M"\nhost_memory = "1M"\n')
        # Each piece of 8 MB takes 34 KB of host memory, so 30 pieces fit.
        self.assertIn("managed 240 then out of memory, free 272\n",
                      self.meet_limits("fill", server, "tcp"))

    def test_imported_memory_counts(self):
        server = self.server('[limits.session]\ndevice_memory = "64M"\n')
        for transport in TRANSPORTS:
            with self.subTest(transport=transport):
                result = subprocess.run([sys.executable, "-c", SHARE, "-1"], capture_output=True, text=True,
                                        timeout=120, env=self.environment(server, transport))
                # The exporter's memory exists as long as its descriptor.
                self.assertEqual(result.stdout, "2 0 0 2\n2\n", result.stderr + server.text())

    def test_a_session_has_as_many_priorities_as_it_may(self):
        for priorities in (0, 2):
            server = self.server(f"[limits.session]\npriorities = {priorities}\n")
            for transport in TRANSPORTS:
                with self.subTest(priorities=priorities, transport=transport):
                    self.assertEqual(self.meet_limits("priorities", server, transport),
                                     f"{priorities}\n{priorities}\n")

    def hold(self, server, transport):
        process = self.start(server, transport, stdin=subprocess.PIPE, arguments=("hold", "40"),
                             program=os.path.join(BUILD, "tests/e2e/rcuda_memory_quota"))
        self.addCleanup(process.stdin.close)
        return process

    def try_again(self, process):
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline()

    def test_sessions_of_a_user_share_its_memory(self):
        server = self.server('[limits.user]\ndevice_memory = "64M"\n')
        for transport in TRANSPORTS:
            with self.subTest(transport=transport):
                first = self.hold(server, transport)
                self.assertEqual(first.stdout.readline(), "holding\n", self.said(first))
                second = self.hold(server, transport)
                self.assertEqual(second.stdout.readline(), "out of memory\n", self.said(second))
                os.kill(server.sessions(BUILD)[first.pid], signal.SIGKILL)  # its worker
                self.assertTrue(eventually(lambda: self.try_again(second) == "holding\n"))
                self.end(first)
                self.end(second)
                self.assertTrue(eventually(lambda: not server.sessions(BUILD)))

    def test_a_bad_time_to_wait_is_refused_by_the_program_itself(self):
        server = self.server()
        self.check_refused(server, "tcp", "RCUDA_WAIT=soon (from the environment) is not usable", "10s", wait="soon")

    def test_a_session_that_has_lasted_too_long_ends(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                server = self.server("[limits.session]\nsession_time = \"2s\"\n",
                                     options=["--audit", self.path("audit-" + transport)])
                process = self.start_session(server, transport)
                self.assertNotEqual(process.wait(timeout=120), 0)
                said = self.said(process)
                self.assertIn("this session ends in 200ms: the server limits sessions to 2s (session_time)", said)
                self.assertRegex(said, "is lost: .*the server ends this session: it has lasted 2s.*administrator")
                self.assertEqual(said.count(" is lost: "), 1)
                self.assertTrue(eventually(lambda: audit_lines(self.path("audit-" + transport), "session")))
                self.assertIn("session_time", audit_lines(self.path("audit-" + transport), "session")[0]["end"])

    def test_the_server_ends_what_a_worker_does_not_end(self):
        for limit in ("session_time", "idle_time"):
            server = self.server(f"[limits.session]\n{limit} = \"500ms\"\n", environment=dict(
                RCUDA_SERVER_STOP_TIMEOUT="100ms", RCUDA_SERVER_HANDSHAKE_TIMEOUT="500ms"))
            process = self.hold(server, "tcp")
            self.assertEqual(process.stdout.readline(), "holding\n", self.said(process))
            (worker,) = server.sessions(BUILD).values()
            os.kill(worker, signal.SIGSTOP)  # like a worker over which a hostile program has control: it does not end the session
            self.assertTrue(eventually(lambda: not server.sessions(BUILD)), server.text())
            self.assertIn(f"worker {worker} has not ended a session that exceeds its limit ({limit})",
                          server.text())
            self.end(process)

    def multiprocessors(self, server, transport):
        return subprocess.run([sys.executable, "-c", PRINT_MULTIPROCESSORS], text=True, timeout=120,
                              env=self.environment(server, transport), capture_output=True).stdout

    def test_a_session_has_its_share_of_the_multiprocessors(self):
        for rules, count in (("", "132\n"), ("[limits.session]\nsm_percent = 25\n", "33\n")):
            server = self.server(rules, environment=dict(SOFTGPU_MPS="1"))
            for transport in TRANSPORTS:
                self.assertEqual(self.multiprocessors(server, transport), count, server.text())

    def test_a_share_that_the_server_cannot_hold_is_refused(self):
        server = self.server("[limits.session]\nsm_percent = 25\n")
        for transport, wait in (("tcp", ""), ("tls", "10min")):  # a worker refuses, so waiting does not help
            self.check_refused(server, transport, "25 % of a GPU (sm_percent)", "nvidia-cuda-mps-control -d", wait=wait)

    def test_with_mps_a_session_does_not_outlive_its_contexts(self):
        server = self.server(environment=dict(SOFTGPU_MPS="1"))
        result = subprocess.run([sys.executable, "-c", FAIL_AND_LIVE_ON], text=True, timeout=120,
                                env=client_environment(BUILD, [server], "tcp"), capture_output=True)
        self.assertRegex(result.stdout, "^7[0-9][0-9] 46$", result.stderr)  # CUDA_ERROR_DEVICE_UNAVAILABLE
        self.assertIn("has ended all sessions on its GPU, because they share NVIDIA's MPS", result.stderr)

    def check_config(self, text, *options):
        with open(self.path("server.toml"), "w") as file:
            file.write(text)
        return subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), *options], capture_output=True,
                              text=True, timeout=60)

    def test_a_bad_file_is_refused(self):
        config = ("--config", self.path("server.toml"))
        for text, *said in (("[limits.user]\nsesions = 1\n", ":2: ", "'sesions'", "sessions, devices"),
                            ("[limits.users.no-such-user]\n", ":1: ", "no-such-user"),
                            ("[limits.groups.no-such-group]\n", ":1: ", "no-such-group"),
                            ("[limits.session]\nidle_time = \"long\"\n", ":2: ", "such as \"30m\"")):
            for options in (["--check-config"], ["--list-settings"], ["--port", "0", "--driver", "softgpu"]):
                result = self.check_config(text, *config, *options)
                # A name may be unknown only because the user database is not reachable yet, so a later start may succeed.
                later = options[0] != "--list-settings" and "no-such" in text
                self.assertEqual(result.returncode, 1 if later else UNUSABLE_SETTINGS, text)
                for part in (self.path("server.toml"), *said):
                    self.assertIn(part, result.stderr)
        result = self.check_config("[limits.user]\nsessions = 1\n", *config, "--list-settings")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"sessions = 1  ([limits.user] in {self.path('server.toml')}:2)", result.stdout)

    def test_the_file_in_the_home_folder_is_found(self):
        os.mkdir(self.path("rcuda"))
        with open(self.path("rcuda/server.toml"), "w") as file:
            file.write("[limits.nobody]\n")
        os.chmod(self.folder, 0o755)
        # As another user, because root's file is in /etc.
        identity = dict(user=NOBODY, group=NOBODY, extra_groups=[]) if os.geteuid() == 0 else {}
        server = os.path.join(BUILD, "bin/rcuda-server")
        if identity and subprocess.run(["test", "-x", server], **identity).returncode != 0:
            self.skipTest("the build folder is closed to other users")
        result = subprocess.run([server, "--check-config"], capture_output=True, text=True, timeout=60,
                                env=dict(os.environ, XDG_CONFIG_HOME=self.folder), cwd="/", **identity)
        self.assertEqual(result.returncode, UNUSABLE_SETTINGS, result.stderr)
        self.assertIn(f"{self.folder}/rcuda/server.toml:1: ", result.stderr)


if __name__ == "__main__":
    run_tests(globals(), "programs")
