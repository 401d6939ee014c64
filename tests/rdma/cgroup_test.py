#!/usr/bin/env python3
"""Cgroups of sessions. Runs in the virtual machine, whose kernel has the controllers of version 2.

    cgroup_test.py --build FOLDER --greedy PROGRAM [unittest arguments]
"""

import os
import signal
import subprocess
import unittest

from servers import client_environment, eventually, run_tests, Server

BUILD = GREEDY = None
MOUNT = "/sys/fs/cgroup"
NOBODY = dict(user=65534, group=65534, extra_groups=[])


def read(path):
    with open(path) as file:
        return file.read().strip()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def group_of(pid):
    return MOUNT + read(f"/proc/{pid}/cgroup").removeprefix("0::")


class CgroupTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.path.exists(f"{MOUNT}/cgroup.controllers"):
            os.makedirs(MOUNT, exist_ok=True)
            subprocess.run(["mount", "-t", "cgroup2", "none", MOUNT], check=True)
        for name in ("memory", "pids", "cpu"):
            write(f"{MOUNT}/cgroup.subtree_control", f"+{name}")

    def setUp(self):
        self.group = f"{MOUNT}/{self._testMethodName}"
        os.mkdir(self.group)

    def groups(self):
        return [name for name in os.listdir(self.group) if name.startswith("worker-")]

    def server(self, **variables):
        """A server in its own group, as systemd starts a unit with Delegate=yes."""
        wrapper = ()
        if "RCUDA_SERVER_CGROUP" not in variables:
            wrapper = ("sh", "-c", f'echo $$ >{self.group}/cgroup.procs && exec "$@"', "sh")
        return Server(BUILD, wrapper=wrapper, environment=dict(RCUDA_SERVER_USERS="*", **variables))

    def stop(self, server):
        self.assertEqual(server.stop(), 0, server.text())

    def session(self, server):
        before = server.sessions(BUILD)
        client = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=client_environment(BUILD, [server]),
                                  cwd="/", text=True, stdout=subprocess.PIPE, **NOBODY)
        self.assertEqual(client.stdout.readline(), "running\n", server.text())
        worker, = (worker for pid, worker in server.sessions(BUILD).items() if pid not in before)
        return client, worker

    def end(self, client):
        client.kill()
        client.wait()
        client.stdout.close()

    def greedy(self, server, mebibytes):
        return subprocess.run([GREEDY, str(mebibytes)], env=client_environment(BUILD, [server]), cwd="/", text=True,
                              capture_output=True, timeout=120, **NOBODY)

    def test_every_worker_has_its_group_and_its_limits(self):
        os.mkdir(f"{self.group}/worker-1")  # left behind by an earlier server
        server = self.server(RCUDA_SERVER_SESSION_MEMORY="512M", RCUDA_SERVER_SESSION_PROCESSES="200",
                             RCUDA_SERVER_SESSION_CPU_WEIGHT="50")
        self.assertNotIn("worker-1", self.groups())
        self.assertEqual(group_of(server.process.pid), f"{self.group}/daemon")
        client, worker = self.session(server)
        group = group_of(worker)
        self.assertEqual(group, f"{self.group}/worker-{worker}")
        self.assertEqual(read(f"{group}/cgroup.procs"), str(worker))
        self.assertEqual(read(f"{group}/memory.max"), str(512 << 20))
        self.assertEqual(read(f"{group}/pids.max"), "200")
        self.assertEqual(read(f"{group}/cpu.weight"), "50")
        limits = read(f"/proc/{worker}/limits").splitlines()
        self.assertIn("unlimited", next(line for line in limits if line.startswith("Max data size")))
        self.end(client)
        self.assertTrue(eventually(lambda: f"worker-{worker}" not in self.groups()), server.text())
        self.stop(server)
        self.assertEqual(self.groups(), [])
        # The group is as it was: another server can start in it.
        self.stop(self.server())

    def test_a_session_without_memory_ends_alone(self):
        server = self.server(RCUDA_SERVER_SESSION_MEMORY="384M", RCUDA_SERVER_STAGING_BYTES="4M")
        client, worker = self.session(server)
        greedy = self.greedy(server, 1024)
        self.assertEqual(greedy.returncode, 1)
        self.assertTrue(eventually(lambda: "was killed: the session needed more host memory than the 384 MiB of "
                                   "RCUDA_SERVER_SESSION_MEMORY; other sessions go on" in server.text()), server.text())
        self.assertIn("which served a session of nobody", server.text())
        self.assertIn(worker, server.sessions(BUILD).values())
        self.assertIsNone(client.poll())
        little = self.greedy(server, 32)
        self.assertEqual((little.returncode, little.stdout), (0, "has all\n"), little.stderr + server.text())
        self.end(client)
        self.stop(server)
        self.assertEqual(self.groups(), [])

    def test_a_server_that_died_leaves_nothing_to_the_next(self):
        first = self.server(RCUDA_SERVER_CGROUP=self.group)
        client, worker = self.session(first)
        self.assertEqual(group_of(worker), f"{self.group}/worker-{worker}")
        self.assertNotIn(self.group, group_of(first.process.pid))
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        self.end(client)
        self.assertIn(f"worker-{worker}", self.groups())
        second = self.server(RCUDA_SERVER_CGROUP=self.group)
        self.assertNotIn(f"worker-{worker}", self.groups())
        self.stop(second)
        self.assertEqual(self.groups(), [])

    def test_a_group_with_others_in_it_is_not_this_servers(self):
        other = subprocess.Popen(["sleep", "600"])
        write(f"{self.group}/cgroup.procs", str(other.pid))
        server = self.server(RCUDA_SERVER_SESSION_MEMORY="1G")
        self.assertIn(f"{self.group} also contains processes that are not of this server", server.text())
        client, worker = self.session(server)
        self.assertEqual(group_of(worker), self.group)
        self.assertIn(str(1 << 30), read(f"/proc/{worker}/limits"))
        self.end(client)
        self.stop(server)
        other.kill()
        other.wait()


if __name__ == "__main__":
    run_tests(globals(), "greedy")
