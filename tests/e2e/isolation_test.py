#!/usr/bin/env python3
"""A worker runs as its user. /proc is read for the sessions of two users of one server of root, and each user tries to
reach the sessions of the other.

    isolation_test.py --build FOLDER --programs FOLDER [unittest arguments]

RCUDA_TEST_DRIVER=nvidia uses a GPU. Needs root and a build that other users can read; otherwise exits with 77.
"""

import contextlib
import itertools
import os
import re
import stat
import subprocess
import tempfile
import unittest

import servers
from servers import client_environment, eventually, run_tests, Server, UNUSABLE_SETTINGS

BUILD = PROGRAMS = None
DRIVER = os.environ.get("RCUDA_TEST_DRIVER", "softgpu")
ADA = dict(user=65534, group=65532, extra_groups=[12, 14])
BOB = dict(user=65533, group=65531, extra_groups=[])  # has no account
NONE = "0000000000000000"

# Tries to reach a process in every way that a debugger or another process has, and prints the ways that work.
REACH = """
import ctypes, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def reads(name):
    with open(f"/proc/{pid}/{name}", "rb") as file: file.read(1)
def traces():
    assert libc.ptrace(16, pid, 0, 0) == 0  # PTRACE_ATTACH
def copies():
    vector = (ctypes.c_size_t * 2)(0x400000, 1)
    assert libc.process_vm_readv(pid, vector, 1, vector, 1, 0) >= 0 or ctypes.get_errno() != 1
def takes():
    process = os.pidfd_open(pid)
    assert libc.syscall(438, process, 0, 0) >= 0  # pidfd_getfd
ways = {"mem": lambda: reads("mem"), "environ": lambda: reads("environ"), "maps": lambda: reads("maps"),
        "fd": lambda: os.listdir(f"/proc/{pid}/fd"), "root": lambda: os.listdir(f"/proc/{pid}/root/"),
        "trace": traces, "copy": copies, "take": takes, "signal": lambda: os.kill(pid, 0)}
for way, go in ways.items():
    try: go()
    except (OSError, AssertionError): continue
    print(way)
"""


def fields(path):
    """A status file of /proc, as a dictionary."""
    with open(path) as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def threads(pid):
    """The status of every thread of a process, without threads that end meanwhile."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield fields(f"/proc/{pid}/task/{thread}/status")


def files_of(pid):
    """What the descriptors of a process refer to, without descriptors that are closed meanwhile."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{number}")


class IsolationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("SKIPPED: only root can be another user")
            raise SystemExit(77)
        library = os.path.join(BUILD, "lib/librcuda.so")
        if subprocess.run(["cat", library], stdout=subprocess.DEVNULL, cwd="/", **ADA).returncode != 0:
            print("SKIPPED: the build folder is closed to other users")
            raise SystemExit(77)

    def server(self, users="*", options=(), index=0, **variables):
        server = Server(BUILD, options=options, index=index, driver=DRIVER,
                        environment=dict(RCUDA_SERVER_USERS=users, **variables))

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def run_program(self, server, user, program="vector_add", transport="auto", device=0):
        environment = client_environment(BUILD, [server], transport)
        environment["RCUDA_DEVICES"] = server.address(device)
        return subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, timeout=120, cwd="/",
                              env=environment, **user)

    def session(self, server, user, device=0):
        """Starts a session that lasts, and returns its client and its worker."""
        environment = client_environment(BUILD, [server])
        environment["RCUDA_DEVICES"] = server.address(device)
        before = server.sessions(BUILD)
        client = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment, cwd="/", text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **user)

        def end():
            client.kill()
            client.wait()
            client.stdout.close()
        self.addCleanup(end)
        self.assertEqual(client.stdout.readline(), "running\n", server.text())
        workers = [worker for pid, worker in server.sessions(BUILD).items() if pid not in before]
        self.assertEqual(len(workers), 1, server.text())
        return client, workers[0]

    def check_identity(self, worker, user):
        seen = 0
        for status in threads(worker):
            self.assertEqual(status["Uid"].split(), [str(user["user"])] * 4)
            self.assertEqual(status["Gid"].split(), [str(user["group"])] * 4)
            self.assertEqual(status["Groups"].split(), [str(group) for group in user["extra_groups"]])
            self.assertEqual(status["NoNewPrivs"], "1")
            for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                self.assertEqual(status[name], NONE, name)
            seen += 1
        self.assertGreater(seen, 2)  # the threads of the driver and of the Link besides the main thread

    def test_every_thread_of_a_worker_is_its_users(self):
        server = self.server()
        workers = {}
        for name, user in (("ada", ADA), ("bob", BOB)):
            _, workers[name] = self.session(server, user)
            self.check_identity(workers[name], user)
            # The daemon's log and audit are files of the daemon alone.
            self.assertNotIn("rcuda-server.log", " ".join(files_of(workers[name])))
        self.assertNotEqual(*workers.values())
        # The idle worker, which starts a moment after the sessions, is still root's.
        self.assertTrue(eventually(lambda: set(server.workers()) - set(workers.values())))
        for pid in set(server.workers()) - set(workers.values()):
            self.assertEqual(fields(f"/proc/{pid}/status")["Uid"].split()[0], "0")

    def test_programs_of_every_user_run_over_every_medium(self):
        server = self.server()
        expected = self.run_program(server, dict(user=0)).stdout
        self.assertTrue(expected)
        for user in (ADA, BOB):
            for transport in ("shm", "tcp"):
                result = self.run_program(server, user, transport=transport)
                self.assertEqual((result.returncode, result.stdout), (0, expected), result.stderr + server.text())
            # These use memory that both client and worker map, and memory that two workers of a user share.
            # The last two cannot run under a sanitizer (CMakeLists.txt).
            for program in ("copies", "host_memory", "managed_memory", "interprocess", "shared_descriptors",
                            *(() if servers.PRELOAD else ("host_registration", "zero_copy"))):
                result = self.run_program(server, user, program)
                self.assertEqual(result.returncode, 0, program + result.stderr + server.text())

    def test_a_worker_is_out_of_reach(self):
        server = self.server()
        _, ada = self.session(server, ADA)
        _, bob = self.session(server, BOB)
        for user, own, other in ((ADA, ada, bob), (BOB, bob, ada)):
            def reach(worker):
                result = subprocess.run(["python3", "-c", REACH, str(worker)], capture_output=True, text=True, cwd="/",
                                        **user)
                self.assertEqual(result.returncode, 0, result.stderr)
                return result.stdout.split()
            self.assertEqual(reach(other), [])
            # A user may only end the worker of its own session, because the worker also holds things that are not the user's.
            self.assertEqual(reach(own), ["signal"])
        self.assertEqual(fields(f"/proc/{ada}/status")["Seccomp"], "2")

    def test_a_user_who_ends_its_worker_ends_nothing_else(self):
        server = self.server()
        _, ada = self.session(server, ADA)
        client, bob = self.session(server, BOB)
        subprocess.run(["kill", "-KILL", str(ada)], check=True, cwd="/", **ADA)
        self.assertTrue(eventually(lambda: re.search(f"worker {ada}, which served a session of .*, ended with signal",
                                                     server.text())))
        self.assertIn(bob, server.sessions(BUILD).values())
        self.assertIsNone(client.poll())
        self.assertEqual(self.run_program(server, ADA).returncode, 0)

    def test_images_are_kept_for_their_user_only(self):
        with tempfile.TemporaryDirectory() as folder:
            cache = os.path.join(folder, "cache")
            os.chmod(folder, 0o755)
            os.mkdir(cache, 0o700)
            server = self.server(RCUDA_SERVER_IMAGE_CACHE=cache)

            def images(*path):
                return set(os.listdir(os.path.join(cache, *path))) - {"users", "ptx"}
            for user in (ADA, BOB, ADA):
                self.assertEqual(self.run_program(server, user).returncode, 0, server.text())
            own = [images("users", str(user["user"])) for user in (ADA, BOB)]
            self.assertTrue(own[0])
            self.assertEqual(own[0], own[1])  # the same program
            self.assertEqual(images(), set())
            self.assertEqual(self.run_program(server, dict(user=0)).returncode, 0)
            self.assertEqual(images(), own[0])  # the images of root
            _, worker = self.session(server, ADA)
            opened = [os.readlink(f"/proc/{worker}/fd/{number}") for number in os.listdir(f"/proc/{worker}/fd")]
            self.assertIn(os.path.join(cache, "ptx", str(ADA["user"])), opened)
            for user, kind in itertools.product((ADA, BOB), ("users", "ptx")):
                path = os.path.join(cache, kind, str(user["user"]))
                status = os.stat(path)
                self.assertEqual((status.st_uid, stat.S_IMODE(status.st_mode)), (user["user"], 0o700))
                # Not even the folder's owner can reach it by its path: only the server's user may enter the folder above.
                self.assertNotEqual(subprocess.run(["ls", path], capture_output=True, cwd="/", **user).returncode, 0)

    def test_a_worker_sees_the_servers_device_nodes_only(self):
        node = "/dev/nvidia77"
        self.assertFalse(os.path.exists(node))
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # a GPU's name, but harmless
        self.addCleanup(os.unlink, node)
        known = {"null", "zero", "full", "random", "urandom", "shm", "infiniband", "fd", "stdin", "stdout", "stderr"}
        server = self.server()
        _, worker = self.session(server, ADA)
        # Without a list of devices the server offers all GPUs.
        self.assertEqual(set(os.listdir(f"/proc/{worker}/root/dev")) - known, {"nvidia77"})
        server = self.server(RCUDA_SERVER_DEVICE_ISOLATION="session", SOFTGPU_DEVICES="2")
        _, worker = self.session(server, ADA, device=1)
        seen = set(os.listdir(f"/proc/{worker}/root/dev"))
        self.assertEqual(seen - known, set())
        self.assertIn("null", seen)
        server = self.server(RCUDA_SERVER_DEVICE_ISOLATION="commands")
        _, worker = self.session(server, ADA)
        self.assertEqual(set(os.listdir(f"/proc/{worker}/root/dev")), set(os.listdir("/dev")))

    def test_a_worker_for_one_session_is_started_for_its_devices(self):
        server = self.server(RCUDA_SERVER_DEVICE_ISOLATION="session", SOFTGPU_DEVICES="3", options=("--pool", "1"))

        def scope(worker):
            with open(f"/proc/{worker}/environ") as environ:
                lines = dict(line.split("=", 1) for line in environ.read().split("\0") if "=" in line)
            devices = [item.split() for item in lines["RCUDA_WORKER_DEVICES"].split(",")]
            self.assertEqual(lines["CUDA_VISIBLE_DEVICES"].split(","), [uuid for _, uuid, _ in devices])
            return {int(ordinal): uuid for ordinal, uuid, _ in devices}
        (_, first), (_, second) = self.session(server, ADA, device=2), self.session(server, BOB, device=0)
        self.assertEqual([list(scope(worker)) for worker in (first, second)], [[2], [0]])
        self.assertNotEqual(scope(first)[2], scope(second)[0])
        def idle():
            try:
                return [list(scope(worker)) for worker in server.workers() if worker not in (first, second)]
            except (FileNotFoundError, ProcessLookupError):  # a worker has ended meanwhile
                return None
        # The idle worker is for the devices of the latest session.
        self.assertTrue(eventually(lambda: idle() == [[0]]))
        for device in (0, 1, 2):
            self.assertEqual(self.run_program(server, ADA, device=device).returncode, 0, server.text())
        refused = self.run_program(server, ADA, device=3)
        self.assertIn("the server does not offer device 3; it offers 0, 1 and 2", refused.stderr)

    def test_limits_of_the_process_where_there_is_no_cgroup(self):
        server = self.server(RCUDA_SERVER_CGROUP="none", RCUDA_SERVER_SESSION_MEMORY="1048576G",
                             RCUDA_SERVER_SESSION_PROCESSES="1000")
        _, worker = self.session(server, ADA)
        with open(f"/proc/{worker}/limits") as file:
            limits = {line[:26].strip(): line[26:].split()[:2] for line in file}
        self.assertEqual(limits["Max core file size"], ["0", "0"])
        self.assertEqual(limits["Max data size"], [str(1 << 50)] * 2)
        self.assertEqual(limits["Max processes"], ["1000", "1000"])

    def test_users_who_are_not_named_are_refused(self):
        server = self.server(users=f"nobody, {BOB['user']}")
        for user in (ADA, BOB):
            self.assertEqual(self.run_program(server, user).returncode, 0, server.text())
        refused = self.run_program(server, dict(user=65531, group=65531, extra_groups=[]))
        self.assertEqual(refused.returncode, 1)
        self.assertIn("does not serve uid 65531", refused.stderr)

    def test_settings_that_cannot_be_met_are_errors(self):
        for variables, text, status in (
                (dict(RCUDA_SERVER_USERS="no-such-user"), '"no-such-user"', 1),  # the user may be added later
                (dict(RCUDA_SERVER_CGROUP="/proc"), "RCUDA_SERVER_CGROUP=/proc", UNUSABLE_SETTINGS)):
            result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--port", "0", "--driver", "softgpu"],
                                    env=dict(os.environ, **variables), capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, status)
            self.assertIn(text, result.stderr)


if __name__ == "__main__":
    run_tests(globals(), "programs")
