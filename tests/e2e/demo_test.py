#!/usr/bin/env python3
"""`rcuda-run --demo`: the demonstration runs on the pool, or on a server that runs only as long as it does.

    demo_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import servers
from servers import eventually, local_connection, run_tests, Server

BUILD = None


def serves(port):
    try:
        local_connection(port).close()
        return True
    except ConnectionRefusedError:
        return False


class DemoTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.run = os.path.join(BUILD, "bin/rcuda-run")
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("RCUDA_DEVICE")}
        self.environment.update(RCUDA_DRIVER="softgpu", LD_PRELOAD=servers.PRELOAD)

    def tearDown(self):
        self.folder.cleanup()

    def demo(self, *options, **variables):
        return subprocess.run([self.run, "--demo", *options], capture_output=True, text=True,
                              env=dict(self.environment, **variables))

    def program_in_place_of_the_demo(self, text):
        """The option that makes rcuda-run --demo run this script."""
        os.mkdir(os.path.join(self.folder.name, "rcuda"))
        library = os.path.join(self.folder.name, "librcuda.so")
        os.symlink(os.path.join(BUILD, "lib/librcuda.so"), library)
        script = os.path.join(self.folder.name, "rcuda/demo")
        with open(script, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(script, 0o755)
        return "--library=" + library

    def test_a_server_lives_as_long_as_the_demonstration(self):
        # The demonstration's server ignores the variables that are set for the user's servers.
        result = self.demo(RCUDA_SERVER_LISTEN="nonsense", RCUDA_SERVER_MAX_SESSIONS="0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertIn("device 0: ", result.stdout)
        self.assertIn("1728 points on 1 device, 0 wrong\n", result.stdout)
        self.assertRegex(result.stdout, r"the server reports: session of .*; ended by the client")
        port = re.search(r"started .*rcuda-server on port (\d+)\n", result.stdout)[1]
        self.assertFalse(serves(port))

    def test_the_pool_is_used_if_there_is_one(self):
        # A worker may not have noticed the end of its session when the demonstration ends.
        drains = {"RCUDA_SERVER_DRAIN_TIMEOUT": "20s"}
        pool = [Server(BUILD, index=index, environment=drains) for index in range(2)]
        devices = ",".join(server.address() for server in pool)
        for options, variables in ((), {"RCUDA_DEVICES": devices}), (("--devices", devices), {}):
            result = self.demo(*options, **variables)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("started", result.stdout)
            self.assertIn("device 1: ", result.stdout)
            self.assertIn("1728 points on 2 devices, 0 wrong\n", result.stdout)
        for server in pool:
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.text().count("ended by the client"), 2)

    def test_a_program_that_fails(self):
        result = self.demo(self.program_in_place_of_the_demo("exit 7\n"))
        self.assertEqual(result.returncode, 7)
        self.assertIn("serving", result.stderr)  # the server's log

    def test_the_server_ends_with_a_demonstration_that_is_killed(self):
        option = self.program_in_place_of_the_demo("echo here; exec sleep 1000\n")
        demo = subprocess.Popen([self.run, "--demo", option], stdout=subprocess.PIPE, text=True,
                                env=self.environment, process_group=0)
        self.addCleanup(os.killpg, demo.pid, signal.SIGKILL)  # the script
        port = re.search(r" on port (\d+)", demo.stdout.readline())[1]
        while demo.stdout.readline() != "here\n":
            pass
        self.assertTrue(serves(port))
        demo.kill()
        demo.wait()
        demo.stdout.close()
        self.assertTrue(eventually(lambda: not serves(port)))

    def test_what_is_missing_is_named(self):
        result = self.demo(RCUDA_DRIVER="/nowhere/libcuda.so.1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("rcuda-server did not start:", result.stderr)
        self.assertIn("/nowhere/libcuda.so.1", result.stderr)
        self.run = shutil.copy(self.run, self.folder.name)
        result = self.demo("--library", os.path.join(BUILD, "lib/librcuda.so"))
        self.assertEqual(result.returncode, 2)
        self.assertIn("install rcuda-server", result.stderr)
        result = self.demo("--", "true")
        self.assertEqual(result.returncode, 2)
        self.assertIn("name no other program", result.stderr)


if __name__ == "__main__":
    run_tests(globals())
