#!/usr/bin/env python3
"""A client and a server of different builds use the commands that both have. tests/support/skewed_commands.cpp makes
such a server.

    builds_test.py --build FOLDER --softgpu LIBRARY [unittest arguments]
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import servers
from servers import client_environment, local_connection, make_token, message, PROTOCOL_VERSION, read_message, run_tests, Server

BUILD = SOFTGPU = None

# Prints, for each device, the results of commands that the server lacks and of commands that it has.
USE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, memory, pool, context = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
def found(name):
    address, status = ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuGetProcAddress_v2(name, ctypes.byref(address), 13000, ctypes.c_uint64(0), ctypes.byref(status)) == 0
    assert (address.value is not None) == (status.value == 0)
    return status.value
names = [b"cuMemsetD16Async", b"cuMemPoolCreate", b"cuMemPoolTrimTo", b"cuMemsetD32Async", b"cuMemPoolDestroy"]
print("found", *map(found, names))
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8)) == 0
    words = (ctypes.c_uint32 * 2)()
    results = [cuda.cuMemsetD32_v2(memory, ctypes.c_uint32(77), ctypes.c_size_t(2)) for _ in range(2)]
    results += [cuda.cuMemsetD16_v2(memory, ctypes.c_uint16(3), ctypes.c_size_t(4)) for _ in range(2)]
    assert cuda.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device) == 0
    results.append(cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
    assert cuda.cuMemcpyDtoH_v2(words, memory, ctypes.c_size_t(8)) == 0
    print("device", device, *results, *words)
"""
HOST_FUNCTION = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
print(cuda.cuLaunchHostFunc(None, function, None), cuda.cuCtxSynchronize())
"""
# Asks NVML for the name of the first GPU, which must fail.
NAME_OF_GPU = """
import ctypes
nvml, gpu, name = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_char * 96)()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
assert nvml.nvmlDeviceGetName(gpu, name, 96) != 0
"""
# Messages of protocol version 1: a Hello, and a Refusal that says "gone".
OLD_HELLO = bytes.fromhex("43554441 01000000 01000000 08000000 0123456789abcdef")
OLD_REFUSAL = bytes.fromhex("43554441 01000000 04000000 0c000000 05000000 04000000 676f6e65")
NOT_FOUND = 1  # CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
NOT_SUPPORTED = 801


class BuildsTest(unittest.TestCase):
    def server(self, **more):
        server = Server(BUILD, driver=SOFTGPU, **more)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def other(self, **variables):
        return self.server(binary="tests/e2e/rcuda-server-skewed", environment=variables)

    def use(self, *servers, **variables):
        result = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True,
                                env=client_environment(BUILD, servers, **variables))
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def test_the_same_build(self):
        result = self.use(self.server())
        self.assertEqual(result.stdout, f"found 0 0 0 0 0\ndevice 0 0 0 0 0 0 {0x30003} {0x30003}\n")
        self.assertEqual(result.stderr, "")

    # An upgrade of the package replaces the file; a removal of the package removes the folder.
    def test_a_server_whose_file_is_replaced_or_gone_serves_with_its_own_build(self):
        for is_replaced in (True, False):
            with self.subTest(is_replaced=is_replaced), tempfile.TemporaryDirectory() as base:
                folder = os.path.join(base, "bin")
                os.mkdir(folder)
                binary = os.path.join(folder, "rcuda-server")
                shutil.copy(os.path.join(BUILD, "bin/rcuda-server"), binary)
                token = make_token(BUILD, base)
                server = self.server(binary=binary, options=("--pool", "0"), environment=token)
                shutil.rmtree(folder)
                if is_replaced:
                    os.mkdir(folder)
                    with open(binary, "w") as file:
                        file.write("#!/bin/sh\nexit 1\n")
                    os.chmod(binary, 0o755)
                # Only now does the server start a worker and a door.
                result = self.use(server, transport="tcp", RCUDA_SECURITY="tls",
                                  RCUDA_TOKEN_FILE=os.path.join(base, "token"))
                self.assertEqual(result.stdout.splitlines()[0], "found 0 0 0 0 0", server.text())
                self.assertTrue(server.doors())

    def test_another_build(self):
        for transport in ("shm", "tcp"):
            server = self.other()
            result = self.use(server, transport=transport)
            self.assertEqual(result.stdout, f"found {NOT_FOUND} {NOT_FOUND} {NOT_FOUND} 0 0\n"
                             f"device 0 0 0 {NOT_SUPPORTED} {NOT_SUPPORTED} {NOT_SUPPORTED} 77 77\n")
            for name in ("cuMemsetD16Async", "cuMemPoolTrimTo"):  # once each
                self.assertEqual(result.stderr.count(f"without a compatible {name}:"), 1, result.stderr)
            self.assertIn("the client runs another build: it does not use 3 of its commands", server.text())

    def test_a_build_without_what_every_program_needs(self):
        for name in ("Signal", "CopyStaged"):
            result = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, timeout=60,
                                    env=client_environment(BUILD, [self.other(SKEWED_COMMAND=name)]))
            self.assertEqual(result.returncode, 1)
            lines = [line for line in result.stderr.splitlines() if "rcuda" in line]
            self.assertEqual(len(lines), 1, result.stderr)
            self.assertIn(f"runs another build of rcuda without a compatible {name}", lines[0])
            self.assertIn("install the same build on both", lines[0])

    # Every launch of a host function fails, and the program does not wait for any of them.
    def test_a_build_without_host_functions(self):
        result = subprocess.run([sys.executable, "-c", HOST_FUNCTION], capture_output=True, text=True, timeout=60,
                                env=client_environment(BUILD, [self.other(SKEWED_COMMAND="LaunchHost")]))
        self.assertEqual(result.stdout, f"{NOT_SUPPORTED} 0\n", result.stderr)

    def test_a_session_over_two_builds(self):
        result = self.use(self.server(), self.other())
        self.assertEqual(result.stdout, f"found {NOT_FOUND} {NOT_FOUND} {NOT_FOUND} 0 0\n"
                         f"device 0 0 0 0 0 0 {0x30003} {0x30003}\n"
                         f"device 1 0 0 {NOT_SUPPORTED} {NOT_SUPPORTED} {NOT_SUPPORTED} 77 77\n")

    def test_a_server_of_an_older_protocol(self):
        with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as local:
            tcp.bind(("127.0.0.1", 0))  # so that no other process gets the port
            port = tcp.getsockname()[1]
            local.bind(f"\0rcuda-{port}")
            local.listen()

            def serve():
                connection, _ = local.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(OLD_REFUSAL)
            thread = threading.Thread(target=serve)
            thread.start()
            environment = dict(client_environment(BUILD, []), RCUDA_DEVICES=f"127.0.0.1@{port}:0")
            result = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, env=environment)
            thread.join()
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"the peer speaks protocol version 1, this side version {PROTOCOL_VERSION}", result.stderr)

    def test_tools_say_that_a_server_is_of_another_build(self):
        server = self.other()
        name = f"127.0.0.1:{server.port}"
        for command in (["rcuda-smi", name], ["rcuda-smi", "top", name, "--rounds", "1"], ["rcuda-smi", "topo", name],
                        ["rcuda-smi", "drain", name], ["rcuda-smi", "end", name, "1"], ["rcuda-lease", "list", name],
                        ["rcuda-lease", "take", name, "--for", "1h"]):
            result = subprocess.run([os.path.join(BUILD, "bin", command[0]), *command[1:]], capture_output=True, text=True)
            said = result.stdout + result.stderr
            self.assertIn(name, said)
            self.assertIn("different builds", said)
            self.assertIn("install the same build on both", said)
        result = subprocess.run([sys.executable, "-c", NAME_OF_GPU], capture_output=True, text=True,
                                env=dict(client_environment(BUILD, [server]), LD_PRELOAD=servers.PRELOAD,
                                         LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda")))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("install the same build on both", result.stderr)

    def test_a_server_whose_gpus_are_told_in_another_form(self):
        server = self.other(SKEWED_GPUS_ONLY="1")
        name = f"127.0.0.1:{server.port}"
        for command, status, rest in (([name], 0, "0 of 256 sessions"), (["top", name, "--rounds", "1"], 0, "0 sessions"),
                                      (["--json", name], 0, '"sessions": []'), (["topo", name], 1, "")):
            result = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), *command], capture_output=True, text=True)
            self.assertEqual(result.returncode, status)
            self.assertIn("install the same build on both", result.stdout + result.stderr)
            self.assertIn(rest, result.stdout)

    def test_a_client_of_another_protocol(self):
        server = self.server()
        with local_connection(server.port) as connection:
            connection.sendall(OLD_HELLO)
            kind, text = read_message(connection)
            self.assertEqual(kind, 4)
            self.assertIn("protocol version 1", text)
        # A message with this version of the framing, but with another form of the body.
        with local_connection(server.port) as connection:
            connection.sendall(message(1, OLD_HELLO[16:] + b"of another form"))
            kind, text = read_message(connection)
            self.assertEqual(kind, 4)
            self.assertIn("install the same build on both", text)


if __name__ == "__main__":
    run_tests(globals(), "softgpu")
