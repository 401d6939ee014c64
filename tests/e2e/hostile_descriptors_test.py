#!/usr/bin/env python3
"""A hostile local user sends a server of root descriptors whose close() blocks, takes the server's name before the
server starts, or asks for memory that others have exported. The server still serves everybody else.

    hostile_descriptors_test.py --build FOLDER --programs FOLDER [unittest arguments]

Exits with 77 if it cannot act as another user.
"""

import contextlib
import hmac
import os
import signal
import socket
import stat
import subprocess
import tempfile
import unittest

from servers import client_environment, EXPORTER, IMPORTER, make_token, message, old_kernel, run_tests, Server

BUILD = PROGRAMS = None

# Sends a socket to each local socket of argv[2:]. The socket has unsent bytes and SO_LINGER, and its peer (argv[1]) does
# not read, so its last close() blocks for 100 s unless the process ends. Prints how many local sockets accepted it. Then
# ends, so that the receivers have the last descriptors.
HOSTILE = """
import array, os, socket, struct, sys
def stuck():
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100))
    return one
took = 0
for name in sys.argv[2:]:
    one, local = stuck(), socket.socket(socket.AF_UNIX)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))]
    local.connect(name.replace("@", "\\0"))
    try: took += local.sendmsg([b"A" * 4], rights) > 0
    except PermissionError: pass
    globals()[name] = one, local
print(took, flush=True)
os._exit(0)
"""

# Sends a message (argv[2]) to a local socket (argv[1]), and prints the type of the answer, or "nothing".
ASK = """
import socket, struct, sys
local = socket.socket(socket.AF_UNIX)
local.settimeout(60)
local.connect(sys.argv[1].replace("@", "\\0"))
local.sendall(bytes.fromhex(sys.argv[2]))
header = local.recv(16)
print(struct.unpack("<8xI4x", header)[0] if header else "nothing")
"""
REFUSAL, EXPORT_QUERY, EXPORT_ANSWER = 4, 23, 24

NOBODY = dict(user=65534, group=65534, extra_groups=[])
STRANGER = dict(user=65533, group=65533, extra_groups=[])


def doors_of(servers):
    """The names of the local sockets at which servers and their workers listen, without those of softgpu."""
    own = set()
    for server in servers:
        for pid in (server.process.pid, *server.workers()):
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):
                    own.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    with open("/proc/net/unix") as sockets:
        lines = [line.split() for line in sockets]
    listening = "00010000"
    return [fields[7] for fields in lines if len(fields) == 8 and fields[3] == listening
            and f"socket:[{fields[6]}]" in own and not fields[7].startswith("@softgpu-")]


class HostileDescriptorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            print("SKIPPED: only root can be another user")
            raise SystemExit(77)
        library = os.path.join(BUILD, "lib/librcuda.so")
        if subprocess.run(["cat", library], stdout=subprocess.DEVNULL, cwd="/", **NOBODY).returncode != 0:
            print("SKIPPED: the build folder is closed to other users")
            raise SystemExit(77)

    def program(self, servers, program, transport):
        result = subprocess.run([os.path.join(PROGRAMS, program)], capture_output=True, text=True, timeout=60, cwd="/",
                                env=client_environment(BUILD, servers, transport))
        self.assertEqual(result.returncode, 0, result.stderr + servers[0].text())

    def attack(self, wrapper, taken):
        servers = [Server(BUILD, index=index, wrapper=wrapper) for index in range(2)]
        port = servers[0].port
        names = (f"@rcuda-{port}", f"/run/rcuda/{port}.sock", f"/run/rcuda/containers/{port}.sock")
        sink = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(sink.close)
        # The daemon must not close the descriptors before the hostile process ends.
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
            self.attack(old_kernel(folder), 3)

    def exporter(self, server):
        """Starts a session of nobody that exports memory as long as the test runs. Returns the name of the memory."""
        exporter = subprocess.Popen(["python3", "-c", EXPORTER], cwd="/", text=True, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, env=client_environment(BUILD, [server]), **NOBODY)
        self.addCleanup(exporter.wait)
        self.addCleanup(exporter.stdout.close)
        self.addCleanup(exporter.stdin.close)
        return exporter.stdout.readline().strip()

    def test_exports_are_found_meanwhile(self):
        with tempfile.TemporaryDirectory() as folder:
            servers = [Server(BUILD, wrapper=old_kernel(folder), options=("--users", "*")) for _ in range(2)]
            name = self.exporter(servers[0])
            sink = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(sink.close)
            doors = doors_of(servers)
            for server in servers:
                self.assertIn(f"/run/rcuda/{server.port}.sock", doors)
            # None of them may close the descriptors before the hostile process ends.
            processes = [pid for server in servers for pid in (server.process.pid, *server.workers())]
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
            hostile = subprocess.run(["python3", "-c", HOSTILE, str(sink.getsockname()[1]), *doors], cwd="/", text=True,
                                     capture_output=True, timeout=60, **STRANGER)
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
            self.assertEqual(hostile.stdout, f"{len(doors)}\n", hostile.stderr)
            for server in servers:  # within a server, and across two
                found = subprocess.run(["python3", "-c", IMPORTER, name], cwd="/", text=True, capture_output=True,
                                       timeout=60, env=client_environment(BUILD, [server]), **NOBODY)
                self.assertEqual(found.stdout, "0\n", found.stderr + servers[0].text())
            self.doCleanups()
            self.assertEqual([server.stop() for server in servers], [0, 0])

    def test_a_user_with_a_token_finds_exports(self):
        with tempfile.TemporaryDirectory() as folder:
            server = Server(BUILD, environment=dict(make_token(BUILD, folder, user=NOBODY["user"]),
                                                    RCUDA_SERVER_USERS="root,nobody"))
            environment = client_environment(BUILD, [server], "tcp", RCUDA_SECURITY="tls",
                                             RCUDA_TOKEN_FILE=os.path.join(folder, "token"))
            with subprocess.Popen(["python3", "-c", EXPORTER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env=environment) as exporter:
                name = exporter.stdout.readline().strip()
                found = subprocess.run(["python3", "-c", IMPORTER, name], text=True, capture_output=True, timeout=60,
                                       env=environment)
                self.assertEqual(found.stdout, "0\n", found.stderr + server.text())
                exporter.stdin.close()
            self.assertEqual(server.stop(), 0)

    def test_only_the_user_gets_an_export(self):
        server = Server(BUILD, options=("--users", "*"))
        name = bytes.fromhex(self.exporter(server))
        host = socket.gethostname()
        owner = f"uid 5 65534, host {len(host)} {host}, "
        place = hmac.digest(name[16:32] + bytes(16), b"rcuda exports of " + owner.encode(), "sha256")

        def ask(socket_name, user):
            query = message(EXPORT_QUERY, place + name[8:12] + name[32:48])
            return subprocess.run(["python3", "-c", ASK, socket_name, query.hex()], cwd="/", text=True,
                                  capture_output=True, check=True, timeout=60, **user).stdout.strip()

        door, for_containers = f"/run/rcuda/{server.port}.sock", f"/run/rcuda/containers/{server.port}.sock"
        self.assertEqual(ask(door, NOBODY), str(EXPORT_ANSWER), "the query is right")
        self.assertEqual(ask(door, STRANGER), "nothing")
        self.assertEqual(ask(door, {}), "nothing", "root is another user")
        self.assertEqual(ask(for_containers, NOBODY), str(REFUSAL))
        self.doCleanups()
        self.assertEqual(server.stop(), 0)

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
            self.assertIn(f"another process has taken the socket name @rcuda-{port}", server.text())
            status = os.stat(path)
            self.assertEqual((stat.S_IMODE(status.st_mode), status.st_gid), (mode, group))
            self.program([server], "vector_add", "shm")
            self.program([server], "vector_add", "tcp")  # with a ticket
            os.kill(server.process.pid, signal.SIGKILL)  # leaves the path, which the next server replaces
            server.process.wait()
        os.unlink(path)


if __name__ == "__main__":
    run_tests(globals(), "programs")
