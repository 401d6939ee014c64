#!/usr/bin/env python3
"""Parked sessions: sessions whose GPU memory is in the host's memory while they do nothing.

    parking_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
import unittest

import servers
from cutting_proxy import CuttingProxy
from servers import audit_lines, client_environment, eventually, EXPORTER, IMPORTER, make_token, run_tests, Server

BUILD = PROGRAMS = None
NOBODY = 65534
TRANSPORTS = ("shm", "tcp")
# The capabilities of debian/rcuda-server.service.
AS_PACKAGED = ("setpriv", "--bounding-set", "-all,+setuid,+setgid,+chown,+kill,+sys_admin", "--no-new-privs")
MIB = 1 << 20

# Executes the lines of stdin, and prints a line for each.
PROGRAM = """
import ctypes, sys
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
kept, stream = [], ctypes.c_void_p()
def capture():
    check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    check(cuda.cuStreamBeginCapture_v2(stream, 0))
def end_capture():
    check(cuda.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p())))
def check(result):
    if result != 0: raise RuntimeError(str(result))
def fill(value):
    check(cuda.cuMemsetD32_v2(memory, ctypes.c_uint(int(value)), ctypes.c_size_t(bytes // 4)))
def post(value):
    check(cuda.cuMemsetD32Async(memory, ctypes.c_uint(int(value)), ctypes.c_size_t(bytes // 4), None))
def get():
    word = ctypes.c_uint()
    check(cuda.cuMemcpyDtoH_v2(ctypes.byref(word), ctypes.c_uint64(memory.value + bytes - 4), ctypes.c_size_t(4)))
    return word.value
def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value
def allocate(mib):
    more = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(more), ctypes.c_size_t(int(mib) << 20)))
    kept.append(more)
def within():
    check(cuda.cuMemcpyDtoDAsync_v2(ctypes.c_uint64(memory.value + (1 << 20)), memory, ctypes.c_size_t(1 << 20), None))
def put(value):
    content = (ctypes.c_ubyte * bytes)(*[int(value)])
    check(cuda.cuMemcpyHtoDAsync_v2(memory, content, ctypes.c_size_t(bytes), None))
def release():
    check(cuda.cuMemFree_v2(kept.pop()))
def managed():
    more = ctypes.c_uint64()
    check(cuda.cuMemAllocManaged(ctypes.byref(more), ctypes.c_size_t(1 << 20), 1))
bytes = int(sys.argv[1]) << 20
check(cuda.cuInit(0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(bytes)))
print("ready", flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    try:
        print(globals()[name](*arguments), flush=True)
    except RuntimeError as error:
        print("error", error, flush=True)
"""


def can_raise_limits():
    """Whether this user may raise a limit of a process (CAP_SYS_RESOURCE)."""
    raised = "import resource as r; r.setrlimit(r.RLIMIT_DATA, (1 << 40, 1 << 40)); r.setrlimit(r.RLIMIT_DATA, (2 << 40, 2 << 40))"
    return subprocess.run(["/usr/bin/env", "python3", "-c", raised], stderr=subprocess.DEVNULL).returncode == 0


class Parking(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    way = "driver"

    def path(self, name):
        return os.path.join(self.folder, name)

    def server(self, settings="", rules="", options=(), wrapper=(), **environment):
        with open(self.path("server.toml"), "w") as file:
            file.write(settings + rules)
        if self.way == "worker":
            environment.setdefault("RCUDA_SERVER_MOVABLE_MEMORY", "true")
        server = Server(BUILD, options=["--config", self.path("server.toml"), "--audit", self.path("audit"), *options],
                        environment=environment, wrapper=wrapper)

        def stop():
            if server.process.poll() is None:
                self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def program(self, server, *transport, **more):
        """Starts a program with a session. do() makes it execute a line."""
        process = self.start_program(server, *transport, **more)
        self.assertEqual(process.stdout.readline().strip(), "ready", self.text_of(process.log))
        return process

    def start_program(self, server, transport="shm", mib=16, code=PROGRAM, user=None, **more):
        servers = server if isinstance(server, list) else [server]
        log = tempfile.TemporaryFile("w+")
        process = subprocess.Popen(["/usr/bin/env", "python3", "-c", code, str(mib)],
                                   env=dict(client_environment(BUILD, servers, transport), **more),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                   **({} if user is None else dict(user=user, group=user, extra_groups=[], cwd="/")))
        process.log = log
        for cleanup in (log.close, process.stdout.close, process.stdin.close, process.wait, process.kill):
            self.addCleanup(cleanup)
        return process

    @staticmethod
    def text_of(log):
        log.seek(0)
        return log.read()

    def send(self, process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()

    def do(self, process, line):
        self.send(process, line)
        return process.stdout.readline().strip()

    def smi(self, *arguments, check=True):
        done = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), *arguments], capture_output=True, text=True)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def look(self, server):
        return json.loads(self.smi("--json", f"127.0.0.1:{server.port}").stdout)[0]

    def session(self, server, process):
        found = [one for one in self.look(server)["sessions"] if one["pid"] == process.pid]
        return found[0] if found else None

    def state(self, server, process):
        session = self.session(server, process)
        return session and session["park"]

    def park(self, server, process, check=True):
        # Repeated, because the session's last work may not have ended yet, or its last posted command may still arrive and
        # wake it.
        for _ in range(100):
            woken = server.text().count("because its program needs the GPU")
            done = self.smi("park", f"127.0.0.1:{server.port}", str(self.session(server, process)["worker"]),
                            check=False)
            is_awake = self.state(server, process) == "" and done.returncode == 0
            came_late = is_awake and server.text().count("because its program needs the GPU") > woken
            if "work in progress" not in done.stderr and not came_late:
                break
            time.sleep(0.05)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr + server.text())
            self.assertEqual(self.state(server, process), "parked", server.text())
        return done

    def wake(self, server, process):
        return self.smi("wake", f"127.0.0.1:{server.port}", str(self.session(server, process)["worker"]))

    def used(self, server):
        return self.look(server)["devices"][0]["used_bytes"]


class ParkingTest(Parking):
    # ---- the way there and back

    def test_a_parked_session_uses_no_gpu_memory_and_wakes_at_its_next_command(self):
        for transport in TRANSPORTS:
            with self.subTest(transport):
                server = self.server()
                program = self.program(server, transport)
                self.do(program, "fill 12345")
                before = self.used(server)
                self.assertGreaterEqual(before, 16 * MIB)
                answer = self.park(server, program)
                self.assertIn("parked for", answer.stdout)
                session = self.session(server, program)
                self.assertGreaterEqual(session["parked_bytes"], 16 * MIB)
                self.assertEqual(session["park_way"], self.way)
                self.assertTrue(eventually(lambda: self.used(server) <= before - 16 * MIB), self.used(server))
                self.assertIn("parked for", server.status(BUILD))
                self.assertEqual(self.do(program, "get"), "12345")
                self.assertEqual(self.state(server, program), "")
                self.assertTrue(eventually(lambda: self.used(server) == before), self.used(server))
                server.stop()

    def test_questions_about_memory_do_not_wake(self):
        server = self.server()
        program = self.program(server)
        free = self.do(program, "info")
        self.park(server, program)
        self.assertEqual(self.do(program, "info"), free)
        self.assertEqual(self.state(server, program), "parked")

    def test_posted_commands_wake_and_keep_their_order(self):
        server = self.server()
        program = self.program(server)
        for value in (1, 2, 3):
            self.park(server, program)
            for other in (value + 10, value + 20, value):
                self.do(program, f"post {other}")
            self.assertEqual(self.do(program, "get"), str(value))

    def test_wake_needs_no_command(self):
        server = self.server()
        program = self.program(server)
        self.do(program, "fill 7")
        self.park(server, program)
        self.wake(server, program)
        self.assertEqual(self.state(server, program), "")
        self.assertEqual(self.do(program, "get"), "7")
        again = self.smi("wake", f"127.0.0.1:{server.port}", str(self.session(server, program)["worker"]), check=False)
        self.assertIn("is not parked", again.stderr)

    def test_idle_sessions_are_parked_after_a_time(self):
        server = self.server('park_after = "200ms"\n')
        program = self.program(server)
        self.do(program, "fill 99")
        for _ in range(2):
            self.assertTrue(eventually(lambda: self.state(server, program) == "parked"), server.text())
            self.assertEqual(self.do(program, "get"), "99")
        self.assertIn("because it was idle (park_after)", server.text())

    def test_park_after_is_reloaded(self):
        server = self.server('park_after = "1h"\n')
        program = self.program(server)
        with open(self.path("server.toml"), "w") as file:
            file.write('park_after = "100ms"\n')
        self.assertIn("park_after", self.smi("reload", f"127.0.0.1:{server.port}").stdout)
        self.assertTrue(eventually(lambda: self.state(server, program) == "parked"), server.text())

    def test_a_reload_leaves_parked_sessions_parked(self):
        server = self.server()
        program = self.program(server)
        self.do(program, "fill 5")
        self.park(server, program)
        self.smi("reload", f"127.0.0.1:{server.port}")
        self.assertEqual(self.state(server, program), "parked")
        self.assertEqual(self.do(program, "get"), "5")

    def test_the_audit_names_who_parked_and_woke(self):
        server = self.server()
        program = self.program(server)
        self.park(server, program)
        self.do(program, "get")
        control = lambda: audit_lines(self.path("audit"), "control")
        self.assertTrue(eventually(lambda: len(control()) == 2))  # the program continues before the daemon is notified
        lines = control()
        self.assertEqual([line["what"] for line in lines], ["park", "wake"])
        self.assertIn("user", lines[0])
        self.assertNotIn("user", lines[1])

    @unittest.skipIf(os.geteuid() != 0, "needs a server of root")
    def test_a_worker_of_another_user_is_parked_too(self):
        server = self.server(options=["--users", "nobody"], wrapper=AS_PACKAGED)
        program = self.program(server, user=NOBODY, HOME="/")
        self.do(program, "fill 77")
        worker = self.session(server, program)["worker"]
        with open(f"/proc/{worker}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        self.assertEqual((fields["Uid"].split()[0], fields["Seccomp"].strip()), (str(NOBODY), "2"))
        owner = lambda: os.stat(f"/proc/{worker}/fd").st_uid  # the owner is root if the process is not dumpable
        self.assertEqual(owner(), 0)
        self.park(server, program)
        self.assertEqual(owner(), 0)
        self.assertEqual(self.do(program, "get"), "77")
        self.assertEqual(owner(), 0)

    def test_a_parked_worker_may_be_silent_for_longer_than_a_client_waits(self):
        server = self.server()
        programs = [self.program(server, transport) for transport in TRANSPORTS]
        workers = [self.session(server, program)["worker"] for program in programs]
        for program in programs:
            self.do(program, "fill 78")
            self.park(server, program)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # as NVIDIA's driver may do while it moves memory
        time.sleep(11)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        for program in programs:
            self.assertEqual(self.do(program, "get"), "78")
            self.assertEqual(self.text_of(program.log), "")

    # ---- what is refused

    def refusal(self, server, process):
        refused = self.park(server, process, check=False)
        self.assertEqual(refused.returncode, 1, refused.stdout)
        return refused.stderr

    def test_managed_memory_of_the_driver_is_refused_and_the_session_goes_on(self):
        server = self.server()
        program = self.program(server, "tcp")
        self.do(program, "fill 3")
        self.assertEqual(self.do(program, "managed"), "None")
        self.assertIn("managed memory", self.refusal(server, program))
        self.assertEqual(self.do(program, "get"), "3")

    def test_managed_memory_that_is_shared_with_the_client_can_be_parked(self):
        server = self.server()
        program = self.program(server, "shm")
        self.do(program, "fill 3")
        self.assertEqual(self.do(program, "managed"), "None")
        self.park(server, program)
        self.assertEqual(self.do(program, "get"), "3")

    def test_sessions_with_connections_to_other_servers_are_refused(self):
        servers = [self.server(), Server(BUILD, index=1)]
        self.addCleanup(servers[1].stop)
        program = self.program(servers, RCUDA_P2P="eager")
        self.do(program, "fill 4")
        self.assertIn("other servers", self.refusal(servers[0], program))
        self.assertEqual(self.do(program, "get"), "4")

    def test_work_in_progress_is_refused(self):
        server = self.server()
        process = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE, text=True,
                                   env=client_environment(BUILD, [server], "shm"))
        for cleanup in (process.stdout.close, process.wait, process.kill):
            self.addCleanup(cleanup)
        process.stdout.readline()
        worker = str(self.session(server, process)["worker"])
        # On a busy machine, the program may have no work in progress for a moment, and is parked.
        refused = lambda: "work in progress" in self.smi("park", f"127.0.0.1:{server.port}", worker, check=False).stderr
        self.assertTrue(eventually(refused))

    def test_a_stream_in_capture_is_refused_until_its_end(self):
        server = self.server()
        program = self.program(server)
        self.do(program, "fill 7")
        self.assertEqual(self.do(program, "capture"), "None")
        self.assertIn("one of its streams is in capture", self.refusal(server, program))
        self.assertEqual(self.do(program, "end_capture"), "None")
        self.park(server, program)
        self.assertEqual(self.do(program, "get"), "7")

    # ---- ends

    def test_a_client_that_ends_while_parked_leaves_nothing(self):
        for way in ("end", "kill"):
            with self.subTest(way):
                server = self.server()
                program = self.program(server)
                self.park(server, program)
                program.stdin.close() if way == "end" else program.kill()
                program.wait()
                self.assertTrue(eventually(lambda: not self.look(server)["sessions"]), server.text())
                self.assertTrue(eventually(lambda: len(server.workers()) <= 1), server.workers())
                self.assertEqual(server.stop(), 0, server.text())

    def test_a_worker_that_is_killed_while_parked_ends_its_session(self):
        server = self.server()
        program = self.program(server)
        self.park(server, program)
        os.kill(self.session(server, program)["worker"], signal.SIGKILL)
        self.assertTrue(self.do(program, "get").startswith("error"))
        self.assertTrue(eventually(lambda: not self.look(server)["sessions"]), server.text())

    def test_a_disconnected_session_can_be_parked(self):
        server = self.server()
        proxy = CuttingProxy(server.port, seconds=1e6)
        self.addCleanup(proxy.close)
        program = self.program(server, "tcp", RCUDA_DEVICES=proxy.address(), RCUDA_SECURITY="none", RCUDA_RECONNECT="60s")
        self.do(program, "fill 6")
        proxy.take_down()
        self.assertTrue(eventually(lambda: "the connection is lost" in server.text()), server.text())
        self.park(server, program)
        self.send(program, "get")
        proxy.bring_up()
        self.assertEqual(program.stdout.readline().strip(), "6")

    def test_a_server_stops_while_sessions_are_parked(self):
        server = self.server()
        program = self.program(server)
        self.park(server, program)
        self.assertEqual(server.stop(), 0, server.text())
        self.assertNotIn("did not end in time", server.text())
        self.assertTrue(self.do(program, "get").startswith("error"))

    def test_a_parked_session_can_be_ended(self):
        server = self.server()
        program = self.program(server)
        self.park(server, program)
        self.smi("end", f"127.0.0.1:{server.port}", str(self.session(server, program)["worker"]))
        self.assertTrue(eventually(lambda: not self.look(server)["sessions"]), server.text())

    # ---- room

    def test_a_session_waits_for_room_on_its_gpu(self):
        server = self.server(SOFTGPU_MEMORY="64M")
        first, second = self.program(server, mib=40), None
        self.do(first, "fill 1")
        self.park(server, first)
        second = self.program(server, mib=40)
        self.do(second, "fill 2")
        self.send(first, "get")
        self.assertTrue(eventually(lambda: self.state(server, first) == "waiting"), server.text())
        self.assertEqual(self.do(second, "get"), "2")
        self.park(server, second)
        self.assertEqual(first.stdout.readline().strip(), "1")
        # Now the second program waits until the first ends.
        self.send(second, "get")
        self.assertTrue(eventually(lambda: self.state(server, second) == "waiting"), server.text())
        first.stdin.close()
        self.assertEqual(second.stdout.readline().strip(), "2")

    def test_allocations_of_others_leave_room_for_a_session_that_wakes(self):
        # The helper takes a second to start the driver. For this time, the session is "waking".
        server = self.server(SOFTGPU_MEMORY="64M", SOFTGPU_INIT_MS="1000")
        first, second = self.program(server, mib=40), self.program(server, mib=1)
        self.do(first, "fill 1")
        self.park(server, first)
        self.send(first, "get")
        self.assertTrue(eventually(lambda: self.state(server, first) == "waking"), server.text())
        self.assertEqual(self.do(second, "allocate 10"), "None")
        self.assertEqual(self.state(server, first), "waking")
        self.assertEqual(self.do(second, "allocate 30"), "None")  # softgpu counts each process alone
        self.assertEqual(self.state(server, first), "")
        self.assertEqual(first.stdout.readline().strip(), "1")

    def test_two_sessions_that_wake_at_once_take_turns(self):
        server = self.server(SOFTGPU_MEMORY="64M")
        programs = []
        for value in (1, 2):
            programs.append(self.program(server, mib=40))
            self.do(programs[-1], f"fill {value}")
            self.park(server, programs[-1])
        for program in programs:
            self.send(program, "get")
        states = lambda: [self.state(server, program) for program in programs]
        self.assertTrue(eventually(lambda: sorted(states()) == ["", "waiting"]), server.text())
        awake = states().index("")
        self.assertEqual(programs[awake].stdout.readline().strip(), str(awake + 1))
        self.park(server, programs[awake])
        other = 1 - awake
        self.assertEqual(programs[other].stdout.readline().strip(), str(other + 1))

    def test_a_call_gives_up_after_its_time_and_what_was_posted_before_stays(self):
        server = self.server(SOFTGPU_MEMORY="64M")
        first = self.program(server, mib=40, RCUDA_WAKE_WAIT="300ms")
        self.do(first, "fill 1")
        self.park(server, first)
        second = self.program(server, mib=40)
        self.do(second, "fill 2")
        for line in ("post 8", "allocate 1", "fill 9", "get", "within", "put 8"):
            self.assertEqual(self.do(first, line), "error 2", line)
        self.assertEqual(self.do(first, "info"), str(24 * MIB))
        second.stdin.close()
        self.assertTrue(eventually(lambda: self.state(server, first) == ""), server.text())
        self.assertEqual(self.do(first, "get"), "1")
        self.do(first, "post 10")
        self.assertEqual(self.do(first, "get"), "10")
        self.assertEqual(self.text_of(first.log).count("within RCUDA_WAKE_WAIT (300ms)"), 1)

    def test_a_parked_session_counts_for_no_quota(self):
        server = self.server(rules='[limits.user]\ndevice_memory = "64M"\n')
        first = self.program(server, mib=40)
        self.do(first, "fill 1")
        self.park(server, first)
        second = self.program(server, mib=40)
        self.do(second, "fill 2")
        self.send(first, "get")
        time.sleep(0.3)  # the command must not return, because it exceeds the quota
        self.assertEqual(self.state(server, first), "parked")
        second.stdin.close()
        self.assertEqual(first.stdout.readline().strip(), "1")
        self.assertEqual(self.do(first, "allocate 40"), "error 2")

    def test_the_copy_in_host_memory_needs_no_room_in_the_sessions_limit(self):
        if servers.PRELOAD:
            self.skipTest("a sanitizer needs more memory than the limit")
        server = self.server(RCUDA_SERVER_SESSION_MEMORY="300M", RCUDA_SERVER_CGROUP="none")
        program = self.program(server, mib=400)
        self.do(program, "fill 8")
        limit = lambda: resource.prlimit(self.session(server, program)["worker"], resource.RLIMIT_DATA)[0]
        before = limit()
        if can_raise_limits():
            self.park(server, program)
            self.assertGreaterEqual(limit(), before + 400 * MIB)
        else:
            self.assertIn("RLIMIT_DATA", self.refusal(server, program))
        self.assertEqual(self.do(program, "get"), "8")
        self.assertEqual(self.state(server, program), "")
        self.assertEqual(limit(), before)


class MovableMemoryTest(Parking):
    """Parking of sessions whose memory the worker itself moves."""
    way = "worker"

    def server(self, *arguments, **more):
        # A session that wakes finds out by trying whether there is room. So the workers must share the device's memory.
        return super().server(*arguments, **{"SOFTGPU_SHARED_MEMORY": self.path("account"), **more})

    def vouch(self, server, process):
        """Parks the session. The worker must do so, not the driver."""
        self.park(server, process)
        self.assertEqual(self.session(server, process)["park_way"], "worker")

    test_a_parked_session_uses_no_gpu_memory_and_wakes_at_its_next_command = (
        ParkingTest.test_a_parked_session_uses_no_gpu_memory_and_wakes_at_its_next_command)
    test_posted_commands_wake_and_keep_their_order = ParkingTest.test_posted_commands_wake_and_keep_their_order
    test_a_worker_of_another_user_is_parked_too = ParkingTest.test_a_worker_of_another_user_is_parked_too
    test_a_client_that_ends_while_parked_leaves_nothing = ParkingTest.test_a_client_that_ends_while_parked_leaves_nothing
    test_a_session_waits_for_room_on_its_gpu = ParkingTest.test_a_session_waits_for_room_on_its_gpu
    test_two_sessions_that_wake_at_once_take_turns = ParkingTest.test_two_sessions_that_wake_at_once_take_turns
    test_a_call_gives_up_after_its_time_and_what_was_posted_before_stays = (
        ParkingTest.test_a_call_gives_up_after_its_time_and_what_was_posted_before_stays)
    test_a_parked_session_counts_for_no_quota = ParkingTest.test_a_parked_session_counts_for_no_quota
    refusal = ParkingTest.refusal

    def test_host_memory_is_kept_between_parks(self):
        if servers.PRELOAD:
            self.skipTest("a sanitizer needs more memory than the limit")
        server = self.server(RCUDA_SERVER_PARK_MEMORY="24M", RCUDA_SERVER_SESSION_MEMORY="1G", RCUDA_SERVER_CGROUP="none")
        programs = [self.program(server), self.program(server)]
        for value in (1, 2, 3):
            for program in programs:
                self.do(program, f"fill {value}")
                if not can_raise_limits():
                    self.skipTest("needs CAP_SYS_RESOURCE")
                self.vouch(server, program)
                self.assertEqual(self.do(program, "get"), str(value))

    def test_memory_of_the_driver_does_not_hinder_the_worker(self):
        server = self.server()
        program = self.program(server, "tcp")
        self.do(program, "fill 3")
        self.assertEqual(self.do(program, "managed"), "None")
        self.vouch(server, program)
        self.assertEqual(self.do(program, "get"), "3")

    def test_a_session_whose_room_is_taken_at_the_last_moment_waits_again(self):
        server = self.server(SOFTGPU_NO_ROOM=self.path("full"))
        program = self.program(server)
        self.do(program, "fill 1")
        self.vouch(server, program)
        with open(self.path("full"), "w"):
            pass
        self.send(program, "get")
        self.assertTrue(eventually(lambda: self.state(server, program) == "waiting"), server.text())
        time.sleep(0.5)  # time for several attempts
        self.assertIn(self.state(server, program), ("waiting", "waking"), server.text())
        os.unlink(self.path("full"))
        self.assertEqual(program.stdout.readline().strip(), "1")

    def test_processes_share_memory_by_ipc_handles(self):
        server = self.server()
        with subprocess.Popen(["/usr/bin/env", "python3", "-c", EXPORTER], env=client_environment(BUILD, [server], "shm"),
                              text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as exporter:
            handle = exporter.stdout.readline().strip()
            opened = subprocess.run(["/usr/bin/env", "python3", "-c", IMPORTER, handle], capture_output=True, text=True,
                                    env=client_environment(BUILD, [server], "shm"))
            self.assertEqual(opened.stdout.strip(), "0", opened.stderr)
            exporter.stdin.close()


if __name__ == "__main__":
    run_tests(globals(), "programs")
