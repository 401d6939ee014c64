#!/usr/bin/env python3
"""A copy uses the path and strategy that RCUDA_P2P_PATH and RCUDA_P2P_STRATEGY request, or their
substitutes if they are unavailable. The test reads the plans that the source's worker logs.

    peer_paths_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import subprocess
import sys
import unittest

from servers import client_environment, run_tests, Server

BUILD = None
MIB = 1 << 20

CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from peer_faults import Cuda
import ctypes

cuda = Cuda()
size = int(sys.argv[2])
source, target = cuda.allocate(0, size), cuda.allocate(1, size)
given = bytes(range(251)) * (size // 251 + 1)
got = ctypes.create_string_buffer(size)
cuda.use(0)
cuda.check("cuMemcpyHtoD_v2", source, given, ctypes.c_size_t(size))
cuda.check("cuMemcpyPeer", target, cuda.contexts[1], source, cuda.contexts[0], ctypes.c_size_t(size))
cuda.use(1)
cuda.check("cuMemcpyDtoH_v2", got, target, ctypes.c_size_t(size))
sys.exit(0 if got.raw == given[:size] else "wrong bytes")
"""


def connections_to(ports):
    """The number of established TCP connections of this machine to one of the ports."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                remote, state = line.split()[2:4]
                count += state == "01" and int(remote.split(":")[1], 16) in ports
    return count


class PeerPathsTest(unittest.TestCase):
    def plan_of(self, path, strategy, one_node):
        """The plan of a copy of 5 MB plus one byte, as 'STAGING over ROUTE'."""
        variables = {"RCUDA_LOG": "debug"}
        if one_node:
            variables |= {"SOFTGPU_NODE": "shared", "SOFTGPU_DEVICES": "2"}
        servers = [Server(BUILD, devices=str(i) if one_node else "", index=i, environment=variables)
                   for i in range(2)]
        environment = client_environment(BUILD, servers, RCUDA_P2P_PATH=path,
                                         RCUDA_P2P_STRATEGY=strategy)
        if one_node:
            environment["RCUDA_DEVICES"] = ",".join(s.address(i) for i, s in enumerate(servers))
        try:
            client = subprocess.run(
                [sys.executable, "-c", CLIENT, os.path.dirname(os.path.abspath(__file__)),
                 str(5 * MIB + 1)], env=environment, capture_output=True, text=True, timeout=120)
        finally:
            ends = [server.stop() for server in servers]
        self.assertEqual(client.returncode, 0, client.stderr + servers[0].text())
        self.assertEqual(ends, [0, 0])
        plans = re.findall(r"peer copy \d+ of 5\S* MiB to peer 1: (\w+ over \w+), (\d+) x (\S+ \S+),",
                           servers[0].text())
        self.assertEqual(len(plans), 1, servers[0].text())
        return plans[0]

    def test_staged(self):
        for path in ("shm", "tcp"):
            for strategy, plan in {
                    "v2b": ("1", "1 MiB"),
                    "v3b": ("4", "512 KiB"),
                    "v4b": ("4", "512 KiB"),
                    "hybrid": ("4", "512 KiB"),
                    "v4b:64Kx3": ("3", "64 KiB"),
                    # Without GPUDirect, the same strategy with host memory.
                    "v1": ("1", "1 MiB"),
                    "v2a": ("1", "1 MiB"),
                    "v4a": ("4", "512 KiB")}.items():
                with self.subTest(path=path, strategy=strategy):
                    depth, chunk = plan
                    self.assertEqual(self.plan_of(path, strategy, one_node=False),
                                     (f"host over {path}", depth, chunk))

    def test_sockets(self):
        """The server that accepts the connection decides how many sockets carry the bytes."""
        for streams in (4, 7):
            with self.subTest(streams=streams):
                variables = {"RCUDA_SERVER_BULK_STREAMS": str(streams)}
                servers = [Server(BUILD, index=i, environment=variables) for i in range(2)]
                environment = client_environment(BUILD, servers, RCUDA_P2P_PATH="tcp")
                copy = CLIENT.replace("sys.exit(", "print('copied', flush=True); input(); sys.exit(")
                client = subprocess.Popen(
                    [sys.executable, "-c", copy, os.path.dirname(os.path.abspath(__file__)), str(MIB)],
                    env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                try:
                    self.assertEqual(client.stdout.readline(), "copied\n")
                    # One more connection is for messages. The client's own Links use shared memory.
                    self.assertEqual(connections_to([int(s.port) for s in servers]), 1 + streams)
                    client.communicate("\n", timeout=60)
                    self.assertEqual(client.returncode, 0)
                finally:
                    client.kill()
                    ends = [server.stop() for server in servers]
                self.assertEqual(ends, [0, 0])

    def test_mapped(self):
        for strategy in ("auto", "ipc"):
            with self.subTest(strategy=strategy):
                self.assertEqual(self.plan_of("ipc", strategy, one_node=True)[0], "mapped over ipc")

    def test_nodes_that_cannot_map_one_another_stage(self):
        self.assertEqual(self.plan_of("ipc", "auto", one_node=False)[0], "host over shm")


if __name__ == "__main__":
    run_tests(globals())
