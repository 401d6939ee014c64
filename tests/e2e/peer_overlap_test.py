#!/usr/bin/env python3
"""A pipelined copy between two servers takes the time of its slowest leg; a copy with a single
buffer takes the sum of its legs. The test reads this from the order in which softgpu's copy engines
transferred the chunks.

    peer_overlap_test.py --build FOLDER [unittest arguments]

softgpu's link model (SOFTGPU_PCIE_GBPS) logs the begin and the end of each copy of each copy engine
(SOFTGPU_COPY_LOG). The test measures no time with a clock. It only uses which copies began before
which others had ended. From this it computes the shortest time that the legs' rates allow: the
longest chain of copies, each of which began after the one before had ended.
"""

import os
import subprocess
import sys
import tempfile
import unittest

from servers import client_environment, run_tests, Server

BUILD = None
MIB = 1 << 20
BYTES = 12 * MIB
GBPS = 0.02  # at this rate a chunk takes tens of milliseconds; messages and wake-ups take less than one

CLIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from peer_faults import Cuda

cuda = Cuda()
stream = cuda.stream(0)


def copy(size):
    source, target = cuda.allocate(0, size), cuda.allocate(1, size)
    if cuda.peer(target, source, size, stream) or cuda.call("cuStreamSynchronize", stream):
        sys.exit("the copy failed")
    return source.value, target.value


copy(4096)  # makes the connection
print(*copy(int(sys.argv[2])))
"""


class Leg:
    """The copies of one copy engine from or to one buffer, in the order of their place in the
    buffer."""

    def __init__(self, lines, engine, base):
        self.chunks = []
        for name, address, size, begin, end in lines:
            offset = int(address, 16) - base
            if name == engine and 0 <= offset < BYTES:
                self.chunks.append((offset, int(size), int(begin), int(end)))
        self.chunks.sort()
        self.bytes = sum(size for _, size, _, _ in self.chunks)

    def begin(self, i):
        return self.chunks[i][2]

    def end(self, i):
        return self.chunks[i][3]


def longest_chain(*legs):
    """The length of the longest chain in bytes. On every leg, a byte takes the same time."""
    copies = sorted((end, begin, size) for leg in legs for _, size, begin, end in leg.chunks)
    best = []  # (end, the longest chain that has ended by then), both rising
    for end, begin, size in copies:
        before = max((length for at, length in best if at <= begin), default=0)
        best.append((end, max(before + size, best[-1][1] if best else 0)))
    return best[-1][1]


class PeerOverlapTest(unittest.TestCase):
    def copy(self, path, strategy):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "copies")
            model = {"SOFTGPU_PCIE_GBPS": str(GBPS), "SOFTGPU_COPY_LOG": log}
            servers = [Server(BUILD, index=i, environment=model) for i in range(2)]
            try:
                client = subprocess.run(
                    [sys.executable, "-c", CLIENT, os.path.dirname(os.path.abspath(__file__)),
                     str(BYTES)],
                    env=client_environment(BUILD, servers, RCUDA_P2P_PATH=path,
                                           RCUDA_P2P_STRATEGY=strategy),
                    capture_output=True, text=True, timeout=120)
            finally:
                ends = [server.stop() for server in servers]
            self.assertEqual(client.returncode, 0,
                             client.stderr + servers[0].text() + servers[1].text())
            self.assertEqual(ends, [0, 0])
            source, target = map(int, client.stdout.split())
            with open(log) as lines:
                copies = [line.split() for line in lines]
        out, into = Leg(copies, "d2h", source), Leg(copies, "h2d", target)
        self.assertEqual(out.bytes, BYTES)
        self.assertEqual(into.bytes, BYTES)
        self.assertEqual([chunk[:2] for chunk in out.chunks], [chunk[:2] for chunk in into.chunks])
        return out, into

    def overlapping(self, out, into):
        """The number of chunks that began to leave the source before the previous chunk had arrived."""
        return sum(out.begin(i + 1) < into.end(i) for i in range(len(out.chunks) - 1))

    def check_pipelined(self, path, strategy):
        out, into = self.copy(path, strategy)
        chunks = len(out.chunks)
        self.assertGreaterEqual(chunks, 4)
        self.assertGreaterEqual(self.overlapping(out, into), 3 * (chunks - 1) // 4)
        # The legs take equally long, so without overlap this would be twice the bytes.
        self.assertLess(longest_chain(out, into), 1.5 * BYTES)

    def check_sequential(self, path, strategy):
        out, into = self.copy(path, strategy)
        self.assertGreaterEqual(len(out.chunks), 8)
        self.assertEqual(self.overlapping(out, into), 0)
        self.assertEqual(longest_chain(out, into), 2 * BYTES)


def add_cases():
    for path in ("shm", "tcp"):
        for strategy in ("v3b", "v4b", "hybrid", "auto"):
            def pipelined(self, path=path, strategy=strategy):
                self.check_pipelined(path, strategy)
            setattr(PeerOverlapTest, f"test_{path}_{strategy}_overlaps", pipelined)

        def sequential(self, path=path):
            self.check_sequential(path, "v2b")
        setattr(PeerOverlapTest, f"test_{path}_v2b_does_not", sequential)


add_cases()

if __name__ == "__main__":
    run_tests(globals())
