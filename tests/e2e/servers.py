"""For tests of the whole remote path: starts servers (the built rcuda-server, on free ports) and
their clients."""

import argparse
import atexit
import ipaddress
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time


# Runs a program under a filter of system calls, as on a kernel that lacks some call.
FILTERED = """#!/usr/bin/env python3
import ctypes, os, platform, struct, sys
machine = platform.machine()
load = lambda offset: struct.pack("HBBI", 0x20, 0, 0, offset)
is_not = lambda value, skip: struct.pack("HBBI", 0x15, 0, skip, value)
give = lambda value: struct.pack("HBBI", 0x06, 0, 0, value)
fail = lambda error: give(0x00050000 | error)
code = CODE + give(0x7fff0000)
room = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(room)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


# setsockopt(SO_PASSRIGHTS) fails with ENOPROTOOPT.
NO_PASSRIGHTS = 'load(0) + is_not({"x86_64": 54, "aarch64": 208}[machine], 3) + load(32) + is_not(83, 1) + fail(92)'
# seccomp() fails with ENOSYS.
NO_SECCOMP = 'load(0) + is_not({"x86_64": 317, "aarch64": 277}[machine], 1) + fail(38)'


def filtered(folder, name, code):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(FILTERED.replace("CODE", code))
    os.chmod(path, 0o755)
    return (path,)


def old_kernel(folder):
    """The command that runs a program as on a kernel before 6.16."""
    return filtered(folder, "old-kernel", NO_PASSRIGHTS)


def without_seccomp(folder):
    """The command that runs a program as on a kernel without seccomp."""
    return filtered(folder, "without-seccomp", NO_SECCOMP)


# The beginning of a program for python -c: a session with 3 MiB of device memory at `memory`.
WITH_MEMORY = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(3 << 20)) == 0
"""

# Prints the IPC handle of the memory, which it keeps until its stdin ends.
EXPORTER = WITH_MEMORY + """
handle = (ctypes.c_uint8 * 64)()
assert cuda.cuIpcGetMemHandle(handle, memory) == 0
print(bytes(handle).hex(), flush=True)
sys.stdin.readline()
"""

# Opens the handle in argv[1], and prints the result.
IMPORTER = WITH_MEMORY + """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]
handle, opened = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), ctypes.c_uint64()
print(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(opened), handle, 1))
"""


def make_certificate(build, path, **identity):
    """Makes the certificate that a server's setting names, unless the file exists. `identity`: options
    with which subprocess.run() runs a program as the server's user."""
    if not path or os.path.exists(path):
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        user = str(identity.get("user", os.geteuid()))
        subprocess.run([os.path.join(build, "bin/rcuda-token"), "create", "--user", user, "--certificate", path, "--file",
                        os.path.join(folder, "tokens")], capture_output=True, check=True, **identity)


def make_tokens_file(path, user=None):
    """Makes an empty file of tokens that a server's setting names, unless the file exists."""
    if path and not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        if user is not None:
            os.chown(path, user, user)


class Server:
    def __init__(self, build, driver="softgpu", devices="", index=0, options=(), environment=(),
                 binary="bin/rcuda-server", user=None, wrapper=()):
        self.log = os.memfd_create("rcuda-server.log")
        read_end, write_end = os.pipe()
        command = [*wrapper, os.path.join(build, binary), "--port", "0", "--ready-fd", str(write_end),
                   *options]
        if "--pool" not in options:
            command += ["--pool", "1"]
        if devices:
            command += ["--devices", devices]
        if "--config" not in options:
            command += ["--config", "/dev/null"]
        # Several servers on one machine stand for several nodes, so their GPUs must have different
        # names. The servers do not use the caches and settings of this user's own servers.
        self.folder = tempfile.TemporaryDirectory()
        variables = dict(os.environ, RCUDA_DRIVER=driver, RCUDA_LOG="info",
                         RCUDA_SERVER_IMAGE_CACHE="none", SOFTGPU_NODE=str(index))
        variables.update(environment)
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"):
            # Reports do not go to stderr, because a worker's stderr has the output of its kernels.
            # Leaks are reported, also where a program may leave memory to the end of its process.
            reports = variables.get(name, "").replace("detect_leaks=0", "detect_leaks=1")
            variables[name] = f"{reports}:log_path={self.folder.name}/report"
        # Another user runs the server, without a home folder. Programs and tools of this user must trust that user.
        identity = {}
        self.trust = {} if user is None else {"RCUDA_TRUST_USER": str(user)}
        if user is not None:
            identity = dict(user=user, group=user, extra_groups=[], cwd="/")
            os.chown(self.folder.name, user, user)
        def named(option, variable):
            return options[options.index(option) + 1] if option in options else dict(environment).get(variable)
        make_certificate(build, named("--certificate", "RCUDA_SERVER_CERTIFICATE"), **identity)
        make_tokens_file(named("--tokens", "RCUDA_SERVER_TOKENS"), user)
        self.process = subprocess.Popen(command, pass_fds=[write_end], env=variables,
                                        stdout=self.log, stderr=self.log, **identity)
        atexit.register(lambda: self.process.poll() is None and self.stop())
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            self.port = ready.readline().strip()
        if not self.port:
            self.stop()
            raise SystemExit("rcuda-server did not start:\n" + self.text() + self.sanitizers())

    def stop(self):
        """Stops the server. Returns 0, or a description of what went wrong."""
        self.process.send_signal(signal.SIGTERM)
        try:
            outcome = self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "did not stop within 20 s"
        # A worker ends by _exit(), so its exit status does not show the reports.
        return "sanitizers reported:\n" + self.sanitizers() if self.sanitizers() else outcome

    def sanitizers(self):
        reports = []
        for name in sorted(os.listdir(self.folder.name)):
            if name.startswith("report"):
                with open(os.path.join(self.folder.name, name), errors="replace") as report:
                    reports.append(report.read())
        return "\n".join(reports)

    def text(self):
        # Opened again: a read through self.log would move the position at which the daemon writes.
        with open(f"/proc/self/fd/{self.log}", errors="replace") as log:
            return log.read()

    def address(self, gpu=0):
        return f"127.0.0.1@{self.port}:{gpu}"

    # Resources of the daemon. Its workers and doors are its children.

    def workers(self):
        return [child for child in self.children() if not self.is_door(child)]

    def doors(self):
        return [child for child in self.children() if self.is_door(child)]

    def children(self):
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            return [int(child) for child in children.read().split()]

    @staticmethod
    def is_door(pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                return command.read().startswith(b"rcuda-door")
        except OSError:
            return False

    def status(self, build):
        """What rcuda-smi prints."""
        return subprocess.run([os.path.join(build, "bin/rcuda-smi"), f"127.0.0.1@{self.port}"],
                              env=dict(os.environ, **self.trust), capture_output=True, text=True,
                              check=True).stdout

    def sessions(self, build):
        """{client's process id: its worker's process id}, from rcuda-smi."""
        return {int(client): int(worker)
                for client, worker in re.findall(r"pid (\d+), over .* worker (\d+):", self.status(build))}

    def await_pool(self, build, pool):
        """Waits until the server has no session, and `pool` idle workers or more. A worker uses much
        processor time while it starts and delays the next session, so benchmarks wait for it."""
        def is_rested():
            idle = re.search(r"(\d+) idle worker", self.status(build))
            return idle and int(idle[1]) >= pool and not self.sessions(build)

        if not eventually(is_rested):
            raise SystemExit(f"the server does not get {pool} idle workers:\n{self.text()}")

    def settle(self):
        """Returns when the daemon has finished everything that it had begun. It does one thing at a
        time."""
        with local_connection(self.port) as connection:
            connection.sendall(message(5))  # a StatusQuery; the daemon closes after its answer
            while connection.recv(1 << 16):
                pass

    def descriptors(self):
        """The number of descriptors without the one for each door, because the number of doors follows the
        demand."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd")) - len(self.doors())

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


PROTOCOL_VERSION = 2

UNUSABLE_SETTINGS = 78  # the exit status of a server that does not start because of its settings
WRONG_OPTIONS = 2       # the exit status of every program of rcuda whose command line is wrong

# The runtime of the sanitizer with which the libraries are built; it is preloaded before them.
PRELOAD = ""


def client_environment(build, servers, transport="auto", library="lib/librcuda.so", preload=None,
                       **more):
    libraries = (PRELOAD if preload is None else preload, os.path.join(build, library))
    trusted = ",".join(server.trust["RCUDA_TRUST_USER"] for server in servers if server.trust)
    return dict(os.environ, RCUDA_DEVICES=",".join(server.address() for server in servers),
                RCUDA_TRANSPORT=transport, LD_PRELOAD=" ".join(filter(None, libraries)),
                **({"RCUDA_TRUST_USER": trusted} if trusted else {}), **more)


def make_token(build, folder, *options, user=None):
    """Writes a token of a user, by default this one, into folder/token. Returns the settings with which a server accepts
    the token, also if this user is root."""
    files = {name: os.path.join(folder, name) for name in ("tokens", "server.pem", "token")}
    made = subprocess.run([os.path.join(build, "bin/rcuda-token"), "create", "--server", "*", "--user",
                           str(os.geteuid() if user is None else user), "--file",
                           files["tokens"], "--certificate", files["server.pem"], *options],
                          capture_output=True, check=True).stdout
    with open(os.open(files["token"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
        file.write(made)
    return dict(RCUDA_SERVER_TOKENS=files["tokens"], RCUDA_SERVER_CERTIFICATE=files["server.pem"],
                RCUDA_SERVER_USERS="root")


def audit_lines(path, *events):
    """The lines of an audit; if events are given, only their lines."""
    with open(path) as file:
        return [line for line in map(json.loads, file) if not events or line["event"] in events]


def eventually(condition, seconds=60):
    """Returns whether the condition becomes true in time. The limit is generous, because a test only
    reaches it if it fails."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


# The message format of common/messages/message_io.h.

def message(kind, body=b""):
    return struct.pack("<4I", 0x41445543, PROTOCOL_VERSION, kind, len(body)) + body


def read_message(connection):
    """The kind of the next message and its body; for a Refusal, its text."""
    kind, length = struct.unpack("<8x2I", receive(connection, 16))
    body = receive(connection, length)
    return (kind, body[8:].decode()) if kind == 4 else (kind, body)


def receive(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise EOFError(f"the connection ended after {len(data)} of {length} bytes")
        data += more
    return data


def local_connection(port):
    connection = socket.socket(socket.AF_UNIX)
    # Without a timeout, connect() blocks while the backlog is full; with one, it would fail.
    connection.connect(f"\0rcuda-{port}")
    connection.settimeout(60)
    return connection


def fetch_ticket(connection):
    """The Ticket message that opens a TCP connection to a server of this machine."""
    def endpoint(address):
        return (b"\0" * 10 + b"\xff\xff" + ipaddress.IPv4Address(address[0]).packed
                + struct.pack("<H", address[1]))
    with local_connection(connection.getpeername()[1]) as local:
        local.sendall(message(10, endpoint(connection.getsockname()) + endpoint(connection.getpeername())))
        kind, body = read_message(local)
    assert kind == 11, body
    return message(kind, body)


def load_trace(path):
    with open(path) as file:
        return json.load(file)


def run_tests(settings, *names):
    """Runs unittest.main() for the file whose globals are `settings`. --build and the options
    `names` become the globals BUILD, ... there."""
    global PRELOAD
    import unittest  # imported only here: with_servers.py, which runs hundreds of times, does not need it
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--preload", default="")
    for name in ("build", *names):
        parser.add_argument("--" + name, required=True, type=os.path.abspath)
    arguments, rest = parser.parse_known_args()
    PRELOAD = arguments.preload
    for name in ("build", *names):
        settings[name.upper()] = getattr(arguments, name)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)  # lists the skipped tests and the reasons
