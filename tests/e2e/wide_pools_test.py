#!/usr/bin/env python3
"""Sessions with many servers and with large nodes: every address belongs to one device, workers that
were started before the session serve it, and what does not fit into the addresses is refused.

    wide_pools_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor

from servers import client_environment, eventually, run_tests, Server

BUILD = None
LARGEST_GPU = 288 * 10**9
SMALL = ["--pool", "1", "--staging-bytes", "4M"]


class WidePoolsTest(unittest.TestCase):
    def start(self, count, memory, devices=1):
        """Servers, each with one worker that waits for a session."""
        environment = dict(SOFTGPU_MEMORY=str(memory), SOFTGPU_DEVICES=str(devices))
        with ThreadPoolExecutor(4) as threads:
            servers = list(threads.map(
                lambda index: Server(BUILD, index=index, options=SMALL, environment=environment), range(count)))

        def stop():
            with ThreadPoolExecutor(8) as threads:
                for server, outcome in zip(servers, threads.map(Server.stop, servers)):
                    self.assertEqual(outcome, 0, server.text()[-4000:])
        self.addCleanup(stop)
        self.assertTrue(eventually(lambda: all(len(server.workers()) == 1 for server in servers)))
        return servers

    def run_program(self, servers, *arguments, devices=1, status=0, **settings):
        pool = ",".join(server.address(gpu) for server in servers for gpu in range(devices))
        environment = dict(client_environment(BUILD, [], "shm"), RCUDA_DEVICES=pool, RCUDA_LOG="info", **settings)
        result = subprocess.run([os.path.join(BUILD, "tests/e2e/rcuda_wide_pool"), *arguments], env=environment,
                                capture_output=True, text=True, timeout=100)
        self.assertEqual(result.returncode, status, result.stderr[-4000:] + servers[0].text()[-4000:])
        return result

    def test_64_servers_of_one_device(self):
        servers = self.start(64, memory=80 << 30)
        idle = {server.workers()[0] for server in servers}
        result = self.run_program(servers)
        self.assertEqual(result.stdout, "64 devices: memory, pools, reservations and copies are right\n")
        # Not one worker was started for the session.
        self.assertEqual({int(worker) for worker in re.findall(r"worker (\d+)\n", result.stderr)}, idle)

    def test_8_servers_of_8_large_devices(self):
        servers = self.start(8, memory=LARGEST_GPU, devices=8)
        result = self.run_program(servers, devices=8)
        self.assertEqual(result.stdout, "64 devices: memory, pools, reservations and copies are right\n")

    def test_reservations_end_with_the_window(self):
        servers = self.start(2, memory=LARGEST_GPU)
        result = self.run_program(servers, "greedy")
        self.assertEqual(result.stdout, "refused after more than two reservations: yes\n")
        self.assertEqual(len(re.findall(r"cannot reserve \d+ MiB of addresses: it has \d+ GiB in this program",
                                        result.stderr)), 1, result.stderr)
        self.assertIn("name fewer servers in RCUDA_DEVICES", result.stderr)

    def test_more_memory_than_addresses(self):
        # Each server claims a tenth of all addresses and more.
        servers = self.start(4, memory=12 << 40)
        result = self.run_program(servers, status=1)
        self.assertRegex(result.stderr, r"do not fit into the addresses of one program: this one needs \d+ GiB of "
                                        r"them .*name fewer servers or devices in RCUDA_DEVICES")


if __name__ == "__main__":
    run_tests(globals())
