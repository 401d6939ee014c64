#!/usr/bin/env python3
"""How programs get rcuda's libnccl.so.2, and which NCCL executes their calls, the servers' or the program's own: linked
programs with an RPATH, programs that open the library by its name, CuPy and nccl4py, with rcuda-run and with rcuda.connect().
Also what happens when a server's NCCL fails.

    nccl_loading_test.py --build FOLDER --linked PROGRAM --nccl LIBRARY --wheels FOLDER [unittest arguments]

Both the servers and the program use the library of tests/support/nccl, with different versions.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

from servers import make_token, run_tests, Server

BUILD = LINKED = NCCL = WHEELS = None
CONNECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/rcuda/_connect.py")
OWN, SERVERS = 23203, 22907  # versions

OPENED = """
    import ctypes
    nccl, version = ctypes.CDLL("libnccl.so.2"), ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(version)) == 0
    print("NCCL", version.value)
"""

CUPY = """
    import cupy
    from cupy.cuda import nccl
    print("NCCL", nccl.get_version())
    comms, data = nccl.NcclCommunicator.initAll(2), []
    for device in range(2):
        with cupy.cuda.Device(device):
            data.append(cupy.asarray([1.0, 2.0 + device], dtype=cupy.float32))
    nccl.groupStart()
    for device in range(2):
        with cupy.cuda.Device(device):
            comms[device].allReduce(data[device].data.ptr, data[device].data.ptr, 2, nccl.NCCL_FLOAT32, nccl.NCCL_SUM,
                                    cupy.cuda.Stream.null.ptr)
    nccl.groupEnd()
    for device in range(2):
        with cupy.cuda.Device(device):
            print(cupy.asnumpy(data[device]).tolist())
"""

NCCL4PY = """
    import ctypes
    import nccl.core
    from cuda.core import Device
    print("NCCL", nccl.core.get_version().libnccl.version)
    comms, streams, data = nccl.core.Communicator.init_all([0, 1]), [], []
    for device in range(2):
        Device(device).set_current()
        streams.append(Device(device).create_stream())
        data.append(nccl.core.mem_alloc(4096))
        data[device].fill(2 + device, stream=streams[device])
    with nccl.core.group():
        for device in range(2):
            comms[device].allreduce(data[device], data[device], nccl.core.SUM, stream=streams[device])
    for device in range(2):
        Device(device).set_current()
        streams[device].sync()
        host, address = (ctypes.c_uint8 * 4096)(), ctypes.c_uint64(int(data[device].handle))
        assert ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2(host, address, ctypes.c_size_t(4096)) == 0
        print(set(host))
        comms[device].destroy()
"""

LACKING = """
    import ctypes
    nccl, comm, device = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p(), ctypes.c_int(0)
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, ctypes.byref(device)) == 0
    signal = lambda: nccl.ncclSignal(0, 0, 0, 0, comm, None)
    print(signal(), signal())
    assert nccl.ncclCommDestroy(comm) == 0
"""

SIMULATED = """
    import ctypes
    nccl, comm, device = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p(), ctypes.c_int(0)
    assert nccl.ncclGroupStart() == 0
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, ctypes.byref(device)) == 0
    print(nccl.ncclGroupSimulateEnd(None), nccl.ncclGroupEnd())
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, ctypes.byref(device)) == 0
    assert nccl.ncclCommDestroy(comm) == 0
"""

PAIR = """
    import ctypes
    nccl, comms, version = ctypes.CDLL("libnccl.so.2"), (ctypes.c_void_p * 2)(), ctypes.c_int()
    assert nccl.ncclGetVersion(ctypes.byref(version)) == 0
    print("NCCL", version.value)
    print(nccl.ncclCommInitAll(comms, 2, None))
"""

# Sets the encryption, then makes a communicator of both devices. Prints the results.
ENCRYPTED = """
    import ctypes, sys
    class Config(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("mode", ctypes.c_int),
                    ("psk", ctypes.c_char_p)]
    def config(mode, psk):
        return ctypes.byref(Config(ctypes.sizeof(Config), 0xcafebeef, 23203, mode, psk))
    nccl, comms = ctypes.CDLL("libnccl.so.2"), (ctypes.c_void_p * 2)()
    for psk in sys.argv[1:]:
        print(nccl.ncclSetEncryption(config(bool(psk), psk.encode() or None)), end=" ")
    print(nccl.ncclCommInitAll(comms, 2, None))
"""
# One of two ranks, in a process for each: its number, the file of the id, its secret. Prints the result of its initialization.
RANK = """
    import ctypes, os, sys, time
    class Config(ctypes.Structure):
        _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("mode", ctypes.c_int),
                    ("psk", ctypes.c_char_p)]
    class Id(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]
    rank, path, secret = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
    nccl, cuda = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1")
    context, comm, unique = ctypes.c_void_p(), ctypes.c_void_p(), Id()
    assert nccl.ncclSetEncryption(ctypes.byref(Config(ctypes.sizeof(Config), 0xcafebeef, 23203, bool(secret), secret or None))) == 0
    assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    if rank == 0:
        assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
        with open(path + ".new", "wb") as file:
            file.write(bytes(unique))
        os.rename(path + ".new", path)
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path, "rb") as file:
        unique = Id.from_buffer_copy(file.read())
    print(nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank))
"""
SECRET = "a secret of all ranks, which has 32 bytes or more"

# The worker of rank 0 refuses its operation, whose buffers overlap. So rank 1 waits until the client aborts it.
FAILED_GROUP = """
    import ctypes, time
    nccl, cuda, comms = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1"), (ctypes.c_void_p * 2)()

    def outcome(comm):
        state = ctypes.c_int(7)
        while state.value == 7:
            assert nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)) == 0
            time.sleep(0.002)
        return state.value

    def select(rank):
        context = ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), rank) == 0
        assert cuda.cuCtxSetCurrent(context) == 0

    def all_reduce(rank, offset):
        select(rank)
        source, target = data[rank].value, data[rank].value + offset
        return nccl.ncclAllReduce(ctypes.c_void_p(source), ctypes.c_void_p(target), ctypes.c_size_t(100), 2, 0,
                                  ranks[rank], None)

    assert cuda.cuInit(0) == 0
    assert nccl.ncclCommInitAll(comms, 2, None) in (0, 7)
    ranks, data = [ctypes.c_void_p(comm) for comm in comms], [ctypes.c_void_p(), ctypes.c_void_p()]
    for rank in 0, 1:
        assert outcome(ranks[rank]) == 0
        select(rank)
        assert nccl.ncclMemAlloc(ctypes.byref(data[rank]), ctypes.c_size_t(4096)) == 0
    assert nccl.ncclGroupStart() == 0
    for rank in 0, 1:
        assert all_reduce(rank, 4 - 4 * rank) == 0
    ended = nccl.ncclGroupEnd()
    if ended == 7:
        ended = outcome(ranks[0])
    print(ended, outcome(ranks[1]), all_reduce(1, 0), nccl.ncclCommDestroy(ranks[1]))
    assert nccl.ncclCommAbort(ranks[0]) == 0
"""


class LoadingTest(unittest.TestCase):
    def start(self, *variables):
        """Starts a server for each of these settings of NCCL."""
        def server(index, more):
            made = Server(BUILD, index=index,
                          environment={"RCUDA_SERVER_NCCL": NCCL, "NCCL_SOCKET_IFNAME": "lo", **more})
            self.addCleanup(lambda: self.assertEqual(made.stop(), 0, made.text()))
            return made
        self.devices = ",".join(server(index, more).address() for index, more in enumerate(variables))

    def run_program(self, *command, **variables):
        result = subprocess.run(command, env={**os.environ, "RCUDA_LOG": "info", **variables}, capture_output=True,
                                text=True, timeout=100)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def run_remotely(self, *command, **variables):
        return self.run_program(os.path.join(BUILD, "bin/rcuda-run"), "--devices", self.devices, "--", *command, **variables)

    def connected(self, program):
        """The program, with a call of rcuda.connect() before it. Loads the module alone, because the package is not
        installed."""
        return textwrap.dedent(f"""
            import importlib.util
            spec = importlib.util.spec_from_file_location("rcuda_connect", {CONNECT!r})
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.LIBRARIES = {os.path.join(BUILD, "lib/rcuda")!r}
            module.connect({self.devices!r})
            """) + textwrap.dedent(program)

    def test_linked_with_rpath(self):
        self.start({"TESTNCCL_VERSION": str(SERVERS)})
        own = self.run_program(LINKED, LD_LIBRARY_PATH=os.path.join(BUILD, "softgpu/lib"))
        self.assertEqual(own.stdout, f"NCCL {OWN}\n")
        self.assertEqual(self.run_remotely(LINKED).stdout, f"NCCL {SERVERS}\n")

    def test_opened_by_name(self):
        self.start({"TESTNCCL_VERSION": str(SERVERS)})
        self.assertEqual(self.run_remotely(sys.executable, "-c", textwrap.dedent(OPENED)).stdout, f"NCCL {SERVERS}\n")
        self.assertEqual(self.run_program(sys.executable, "-c", self.connected(OPENED)).stdout, f"NCCL {SERVERS}\n")

    def test_cupy(self):
        python = os.path.join(WHEELS, "bin/python")
        self.assertTrue(os.path.exists(python), "scripts/setup --tests installs it")
        self.start({"TESTNCCL_VERSION": str(SERVERS)}, {"TESTNCCL_VERSION": str(SERVERS)})
        expected = f"NCCL {SERVERS}\n[2.0, 5.0]\n[2.0, 5.0]\n"
        self.assertEqual(self.run_remotely(python, "-c", textwrap.dedent(CUPY)).stdout, expected)
        self.assertEqual(self.run_program(python, "-c", self.connected(CUPY)).stdout, expected)

    def test_nccl4py(self):
        python = os.path.join(WHEELS, "bin/python")
        self.start({"TESTNCCL_VERSION": str(SERVERS)}, {"TESTNCCL_VERSION": str(SERVERS)})
        expected = "NCCL 2.29.7\n{5}\n{5}\n"
        self.assertEqual(self.run_remotely(python, "-c", textwrap.dedent(NCCL4PY)).stdout, expected)
        self.assertEqual(self.run_program(python, "-c", self.connected(NCCL4PY)).stdout, expected)

    def test_whose_library(self):
        # One server has no NCCL. So all GPUs use the program's own NCCL, or the program ends with the reason.
        self.start({"TESTNCCL_VERSION": str(SERVERS)}, {"RCUDA_SERVER_NCCL": "none"})
        self.assertEqual(self.run_remotely(LINKED).stdout, f"NCCL {OWN}\n")
        self.assertEqual(self.run_remotely(LINKED, RCUDA_NCCL="client").stdout, f"NCCL {OWN}\n")
        refused = subprocess.run([os.path.join(BUILD, "bin/rcuda-run"), "--devices", self.devices, "--", LINKED],
                                 env={**os.environ, "RCUDA_NCCL": "server"}, capture_output=True, text=True, timeout=100)
        self.assertEqual(refused.returncode, 1, refused.stderr)
        self.assertIn("NCCL", refused.stderr)

    def test_versions_differ(self):
        self.start({"TESTNCCL_VERSION": "22907"}, {"TESTNCCL_VERSION": "22900"})
        result = self.run_remotely(sys.executable, "-c", textwrap.dedent(PAIR))
        version, outcome = result.stdout.splitlines()
        self.assertEqual(version, "NCCL 22900")
        self.assertNotEqual(outcome, "0")
        self.assertIn("2.29.7", result.stderr)
        self.assertIn("2.29.0", result.stderr)

    def test_function_that_the_servers_lack(self):
        self.start({})
        result = self.run_remotely(sys.executable, "-c", textwrap.dedent(LACKING))
        self.assertEqual(result.stdout, "5 5\n")  # ncclInvalidUsage
        self.assertEqual(result.stderr.count("ncclSignal"), 1, result.stderr)

    def test_encryption(self):
        encrypted = textwrap.dedent(ENCRYPTED)
        self.start({}, {})
        # A short secret is refused (ncclInvalidArgument). After it, none is set.
        for secrets, results in ((SECRET,), "0 0"), (("short",), "4 0"), ((SECRET, ""), "0 0 0"):
            result = self.run_remotely(sys.executable, "-c", encrypted, *secrets)
            self.assertEqual(result.stdout, results + "\n", result.stderr)

    def test_secrets_that_differ(self):
        self.start({}, {})
        for secrets, result in (((SECRET, SECRET), "0\n"), ((SECRET, SECRET[::-1]), "2\n"), ((SECRET, ""), "2\n")):
            with tempfile.TemporaryDirectory() as folder:
                command = [os.path.join(BUILD, "bin/rcuda-run"), "--devices", self.devices, "--", sys.executable, "-c",
                           textwrap.dedent(RANK)]
                ranks = [subprocess.Popen([*command, str(rank), os.path.join(folder, "id"), secret], stdout=subprocess.PIPE,
                                          text=True) for rank, secret in enumerate(secrets)]
                self.assertEqual([rank.communicate(timeout=100)[0] for rank in ranks], [result, result])  # 2: ncclSystemError

    def test_session_that_must_be_encrypted(self):
        with tempfile.TemporaryDirectory() as folder:
            accepts = make_token(BUILD, folder)
            variables = dict(RCUDA_TRANSPORT="tcp", RCUDA_SECURITY="tls", RCUDA_TOKEN_FILE=os.path.join(folder, "token"))
            self.start(accepts, accepts)
            encrypted = textwrap.dedent(ENCRYPTED)
            # With the secret, ranks use the servers' NCCL. Without it, the program's own, which cannot join two servers.
            result = self.run_remotely(sys.executable, "-c", encrypted, SECRET, **variables)
            self.assertEqual(result.stdout, "0 0\n", result.stderr)
            result = self.run_remotely(sys.executable, "-c", encrypted, RCUDA_NCCL="server", **variables)
            self.assertNotEqual(result.stdout, "0\n", result.stderr)
            self.assertIn("call ncclSetEncryption", result.stderr)
            result = self.run_remotely(sys.executable, "-c", encrypted, "short", RCUDA_NCCL="server", **variables)
            self.assertEqual(result.stdout, "4 2\n", result.stderr)  # ncclInvalidArgument, ncclSystemError
            # The encryption cannot be ended.
            result = self.run_remotely(sys.executable, "-c", encrypted, SECRET, "", **variables)
            self.assertEqual(result.stdout, "0 2 0\n", result.stderr)  # ncclSystemError

    def test_simulation_ends_its_group(self):
        self.start({})
        result = self.run_remotely(sys.executable, "-c", textwrap.dedent(SIMULATED))
        # ncclInvalidUsage twice: the group does not consist of operations only; after the simulation no group is open.
        self.assertEqual(result.stdout, "5 5\n", result.stderr)

    def test_tools_show_it(self):
        self.start({"TESTNCCL_VERSION": "22907"}, {"RCUDA_SERVER_NCCL": "none"})
        shown = self.run_program(os.path.join(BUILD, "bin/rcuda-smi"), "--json", RCUDA_DEVICES=self.devices)
        first, second = (server["nccl"] for server in json.loads(shown.stdout))
        self.assertEqual(first, f"NCCL 2.29.7 from {os.path.realpath(NCCL)}")
        self.assertEqual(second, "no NCCL: the server's setting `nccl` is none")

    def test_address_outside_of_the_networks(self):
        # The id contains the address of a rank on the loopback interface. The second server allows only other networks.
        for networks in "10.0.0.0/8,fd00::/8", "auto":
            with self.subTest(networks):
                self.start({}, {"RCUDA_SERVER_NCCL_NETWORKS": networks, "NCCL_SOCKET_IFNAME": "^lo"})
                result = self.run_remotely(sys.executable, "-c", textwrap.dedent(PAIR))
                self.assertEqual(result.stdout.splitlines(), [f"NCCL {OWN}", "5"], result.stderr)  # ncclInvalidUsage
                self.assertEqual(result.stderr.count("nccl_networks"), 1, result.stderr)
                self.doCleanups()

    def test_rank_that_does_not_come(self):
        # The rank of one server fails or dies before it meets the rank of the other server, which waits for it.
        for fault, result in ("fails", 2), ("dies", 6):  # ncclSystemError, ncclRemoteError
            for order in (1, -1):
                with self.subTest(fault, order=order):
                    self.start(*({"TESTNCCL_INIT": fault}, {})[::order])
                    ended = self.run_remotely(sys.executable, "-c", textwrap.dedent(PAIR))
                    self.assertEqual(ended.stdout.splitlines(), [f"NCCL {OWN}", str(result)], ended.stderr)
                    self.doCleanups()

    def test_communicator_that_the_client_aborts(self):
        for blocking in "1", "0":
            with self.subTest(blocking=blocking):
                self.start({}, {})
                ended = self.run_remotely(sys.executable, "-c", textwrap.dedent(FAILED_GROUP), NCCL_COMM_BLOCKING=blocking)
                # ncclInvalidUsage; then ncclRemoteError of all calls but the communicator's end.
                self.assertEqual(ended.stdout, "5 6 6 0\n", ended.stderr)
                self.doCleanups()


if __name__ == "__main__":
    run_tests(globals(), "linked", "nccl", "wheels")
