#!/usr/bin/env python3
"""In a process that never calls CUDA, the preloaded library makes no connection, thread, descriptor or output
and uses no address space, although rcuda's variables are set.

    quiet_test.py --build FOLDER [unittest arguments]
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

from servers import client_environment, run_tests

BUILD = None

# Prints what a process sees of itself, to compare the runs with and without the library.
LOOK = """
import os
print(len(os.listdir('/proc/self/task')), sorted(os.listdir('/proc/self/fd')),
      'librcuda' in open('/proc/self/maps').read(),
      [line for line in open('/proc/self/maps') if line.startswith(('5000', '6500'))])
"""


class QuietTest(unittest.TestCase):
    def setUp(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        port = self.listener.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory()
        self.environment = dict(
            client_environment(BUILD, []), RCUDA_DEVICES=f"127.0.0.1@{port}:0", RCUDA_LOG="trace",
            RCUDA_TRACE=os.path.join(self.folder.name, "trace.json"))

    def tearDown(self):
        with self.assertRaises(BlockingIOError):  # no client has connected
            self.listener.accept()
        self.assertEqual(os.listdir(self.folder.name), [])
        self.listener.close()
        self.folder.cleanup()

    def run_both(self, command):
        """Runs the command with the library preloaded and without."""
        without = {name: value for name, value in self.environment.items()
                   if not name.startswith(("RCUDA_", "LD_PRELOAD"))}
        return [subprocess.run(command, env=environment, capture_output=True, text=True)
                for environment in (self.environment, without)]

    def test_python(self):
        preloaded, plain = self.run_both([sys.executable, "-c", LOOK])
        self.assertEqual((preloaded.returncode, preloaded.stderr), (0, ""))
        self.assertEqual(preloaded.stdout, plain.stdout.replace("False", "True"))

    def test_shells_and_their_children(self):
        preloaded, plain = self.run_both(["/bin/sh", "-c", "echo $(ls / | head -1); (exit 3)"])
        self.assertEqual((preloaded.returncode, preloaded.stdout, preloaded.stderr),
                         (3, plain.stdout, ""))

    def test_a_process_that_forks(self):
        preloaded, _ = self.run_both(
            [sys.executable, "-c", "import os; p = os.fork(); p and os.waitpid(p, 0); print(bool(p))"])
        self.assertEqual((preloaded.returncode, preloaded.stderr), (0, ""))

    def test_a_program_that_looks_for_nvml(self):
        # JAX and PyTorch look for NVML in every program, also in one that does not use CUDA.
        library = os.path.join(BUILD, "lib/rcuda/libnvidia-ml.so.1")
        loads = f"import ctypes; nvml = ctypes.CDLL({library!r}); print(nvml.nvmlInit_v2(), nvml.nvmlShutdown())"
        preloaded, _ = self.run_both([sys.executable, "-c", loads])
        self.assertEqual((preloaded.returncode, preloaded.stdout, preloaded.stderr), (0, "0 0\n", ""))


if __name__ == "__main__":
    run_tests(globals())
