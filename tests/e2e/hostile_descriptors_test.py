#!/usr/bin/env python3
"""A local user who is not served sends the server of root descriptors whose close lingers, or has taken the server's name.
Everybody else is served.

    hostile_descriptors_test.py --build FOLDER --programs FOLDER [unittest arguments]

Exits with 77 if it cannot act as another user.
"""

import os
import signal
import socket
import stat
import subprocess
import tempfile
import unittest

from servers import client_environment, old_kernel, run_tests, Server

BUILD = PROGRAMS = None

# Sends a socket with unsent bytes and SO_LINGER, whose peer (argv[1]) does not read. Its last close blocks for 100 s,
# unless the process ends. Prints how many connections accepted it. Then ends, so these have the last descriptors.
HOSTILE = """
import array, os, socket, struct, sys
stuck = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
stuck.setblocking(False)
try:
    while True: stuck.send(bytes(65536))
except BlockingIOError: pass
stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stuck.fileno()]))]
took = 0
for name in sys.argv[2:]:
    local = socket.socket(socket.AF_UNIX)
    local.connect(name.replace("@", "\\0"))
    try: took += local.sendmsg([b"A" * 4], rights) > 0
    except PermissionError: pass
print(took, flush=True)
os._exit(0)
"""

class HostileDescriptorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("SKIPPED: only root can be another user")
            raise SystemExit(77)

    def program(self, servers, program, transport):
        result = subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, timeout=60, cwd="/",
                                env=client_environment(BUILD, servers, transport))
        self.assertEqual(result.returncode, 0, result.stderr + servers[0].text())

    def attack(self, wrapper, taken):
        servers = [Server(BUILD, index=index, wrapper=wrapper) for index in range(2)]
        names = (f"@rcuda-{servers[0].port}", f"/run/rcuda/{servers[0].port}.sock")
        sink = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(sink.close)
        # The daemon must not be faster.
        servers[0].process.send_signal(signal.SIGSTOP)
        self.addCleanup(servers[0].process.send_signal, signal.SIGCONT)
        hostile = subprocess.run(["python3", "-c", HOSTILE, str(sink.getsockname()[1]), *names], cwd="/", text=True,
                                 user=65534, group=65534, extra_groups=[], capture_output=True, timeout=60)
        self.assertEqual(hostile.stdout, f"{taken}\n", hostile.stderr + servers[0].text())
        servers[0].process.send_signal(signal.SIGCONT)
        # Sessions begin and copy between servers over local sockets, while the descriptors are queued.
        self.program(servers[:1], "vector_add", "shm")
        self.program(servers, "peer_copies", "shm")
        self.assertIn("uid 65534", servers[0].text())
        self.assertEqual([server.stop() for server in servers], [0, 0])
        self.assertFalse(os.path.exists(names[1]))

    def test_the_kernel_refuses_them(self):
        with open("/proc/sys/kernel/osrelease") as file:
            if tuple(map(int, file.read().split("-")[0].split(".")[:2])) < (6, 16):
                self.skipTest("this kernel has no SO_PASSRIGHTS")
        self.attack((), 0)

    def test_without_the_kernels_help(self):
        with tempfile.TemporaryDirectory() as folder:
            self.attack(old_kernel(folder), 2)

    def test_a_name_that_is_taken_stops_no_server_of_root(self):
        # A port that is free now.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        squatter = socket.socket(socket.AF_UNIX)
        self.addCleanup(squatter.close)
        squatter.bind(f"\0rcuda-{port}")
        squatter.listen()
        path = f"/run/rcuda/{port}.sock"
        for users, mode, group in (("*", 0o666, 0), ("@12", 0o660, 12)):
            server = Server(BUILD, options=("--port", str(port), "--users", users))
            self.assertEqual(server.port, str(port), server.text())
            self.assertIn(f"another process has taken the name @rcuda-{port}", server.text())
            status = os.stat(path)
            self.assertEqual((stat.S_IMODE(status.st_mode), status.st_gid), (mode, group))
            self.program([server], "vector_add", "shm")
            self.program([server], "vector_add", "tcp")  # with a ticket
            os.kill(server.process.pid, signal.SIGKILL)  # leaves the path, which the next one replaces
            server.process.wait()
        os.unlink(path)


if __name__ == "__main__":
    run_tests(globals(), "programs")
