#!/usr/bin/env python3
"""Sessions with many servers, and with servers that have much memory: every address belongs to only
one of them, and a session with consecutive servers waits for no new worker.

    wide_pools_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import socket
import subprocess
import unittest

from servers import client_environment, run_tests, Server

BUILD = None


def free_ports(count):
    """The first of `count` consecutive ports that are free."""
    for first in range(20000, 32000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
        return first
    raise SystemExit("no consecutive ports are free")


class WidePoolsTest(unittest.TestCase):
    def serve(self, count, devices, memory):
        """Starts servers on consecutive ports, which stand for consecutive nodes."""
        first = free_ports(count)
        self.servers = []
        node = {"SOFTGPU_DEVICES": str(devices), "SOFTGPU_MEMORY": memory, "SOFTGPU_THREADS": "1", "RCUDA_LOG": "debug",
                "RCUDA_SERVER_STAGING_BYTES": "16M"}
        for index in range(count):
            server = Server(BUILD, index=index, environment=node, options=["--port", str(first + index)])
            self.addCleanup(lambda server=server: self.assertEqual(server.stop(), 0, server.text()))
            self.servers.append(server)
        for server in self.servers:
            server.await_pool(BUILD, 1)
        self.devices = ",".join(server.address(device) for server in self.servers for device in range(devices))

    def run_program(self, *arguments, expect=0, **more):
        environment = dict(client_environment(BUILD, [], "shm", **more), RCUDA_DEVICES=self.devices)
        result = subprocess.run([os.path.join(BUILD, "tests/e2e/rcuda_wide_pool"), *arguments], env=environment,
                                capture_output=True, text=True, timeout=240)
        self.assertEqual(result.returncode, expect, result.stderr + self.servers[-1].text())
        return result

    def served_by(self, server):
        """The workers that had sessions, and all workers in the order of their start."""
        text = server.text()
        started = re.findall(r"worker (\d+) starts with base", text)
        return re.findall(r"rcuda-worker\[(\d+)\] info: session of .* over shm: device", text), started

    def expect_warm(self):
        for server in self.servers:
            sessions, started = self.served_by(server)
            self.assertEqual(sessions, started[:1], server.text())

    def test_64_servers_of_one_device(self):
        self.serve(64, 1, "80G")
        result = self.run_program("use")
        self.assertEqual(result.stdout, "64 devices of 80 GiB or more, 320 ranges: all apart and right\n")
        self.expect_warm()

    def test_8_servers_of_eight_devices_of_288_gb(self):
        self.serve(8, 8, "288G")
        result = self.run_program("use")
        self.assertEqual(result.stdout, "64 devices of 288 GiB or more, 320 ranges: all apart and right\n")
        self.expect_warm()

    def test_reservations_end_at_the_window(self):
        self.serve(2, 1, "16G")
        result = self.run_program("exhaust")
        self.assertEqual(result.stdout, "refused with 2 after some: 1\nand granted again when they were free\n")
        self.assertEqual(len(re.findall("cannot reserve", result.stderr)), 1, result.stderr)

    def test_servers_whose_workers_collide(self):
        """Ports that are 512 apart stand for nodes whose names give the same base. The idle worker of the
        second server cannot serve the session, so that server starts another one."""
        self.serve(1, 1, "16G")
        first = self.servers[0]
        base = re.search(r"starts with base (\d+)", first.text()).group(1)
        for port in range(int(first.port) % 512 + 32000 // 512 * 512, 60000, 512):
            try:
                socket.create_server(("127.0.0.1", port)).close()
                break
            except OSError:
                continue
        second = Server(BUILD, index=1, environment={"RCUDA_LOG": "debug"}, options=["--port", str(port)])
        self.addCleanup(lambda: self.assertEqual(second.stop(), 0, second.text()))
        second.await_pool(BUILD, 1)
        self.assertIn(f"starts with base {base}", second.text())
        self.servers.append(second)
        self.devices = f"{first.address()},{second.address()}"
        result = self.run_program("use")
        self.assertEqual(result.stdout, "2 devices of 16 GiB or more, 10 ranges: all apart and right\n")
        sessions, started = self.served_by(second)
        self.assertEqual(len(sessions), 1)
        self.assertNotEqual(sessions, started[:1])


if __name__ == "__main__":
    run_tests(globals())
