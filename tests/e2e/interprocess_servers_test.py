#!/usr/bin/env python3
"""Memory of another process: a process can open it if it sees the memory's GPU on the same server; otherwise a line
says what is missing.

    interprocess_servers_test.py --build FOLDER [unittest arguments]
"""

import os
import subprocess
import sys
import unittest

from servers import client_environment, EXPORTER, IMPORTER, run_tests, Server

BUILD = None


class InterprocessServersTest(unittest.TestCase):
    def setUp(self):
        self.servers = [Server(BUILD, index=index, environment={"SOFTGPU_DEVICES": "2"}) for index in range(2)]
        for server in self.servers:
            self.addCleanup(server.stop)

    def environment(self, server, visible):
        """The environment for all GPUs of the server, of which the program sees only some, as in a job of Slurm."""
        return dict(client_environment(BUILD, []), RCUDA_DEVICES=f"{server.address(0)},{server.address(1)}",
                    CUDA_VISIBLE_DEVICES=visible, LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda"))

    def results_of(self, importer, visible="1,0"):
        """Opens memory of the first server's GPU 0 in a process that uses the server `importer`. Returns the results and
        the messages of this process."""
        with subprocess.Popen([sys.executable, "-c", EXPORTER], env=self.environment(self.servers[0], "0"), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as exporter:
            name = exporter.stdout.readline().strip()
            done = subprocess.run([sys.executable, "-c", IMPORTER, name], env=self.environment(importer, visible),
                                  capture_output=True, text=True, timeout=60)
            exporter.stdin.close()
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split(), done.stderr

    def test_on_one_server_it_is_opened(self):
        self.assertEqual(self.results_of(self.servers[0]), (["0"], ""))

    def test_on_another_server_of_that_gpu_it_is_opened(self):
        other = Server(BUILD, index=0, environment={"SOFTGPU_DEVICES": "2"})
        self.addCleanup(other.stop)
        self.assertEqual(self.results_of(other), (["0"], ""))

    def test_otherwise_a_line_says_what_is_missing(self):
        for what, server, visible in (("another server", 1, "0,1"), ("a GPU that is not seen", 0, "1")):
            with self.subTest(what):
                results, said = self.results_of(self.servers[server], visible)
                self.assertEqual(results, ["101"], "CUDA_ERROR_INVALID_DEVICE")
                self.assertEqual(said.count("\n"), 1, said)
                self.assertIn("cannot import memory of another process", said)


if __name__ == "__main__":
    run_tests(globals())
