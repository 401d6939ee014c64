#!/usr/bin/env python3
"""The local socket for containers, at a server of root: as which users the server serves its clients. A client in its own
namespaces for mounts and for the network stands for a container.

    container_socket_test.py --build FOLDER --programs FOLDER [unittest arguments]

Exits with 77 if it cannot make such namespaces, or act as another user.
"""

import os
import stat
import subprocess
import unittest

from servers import client_environment, eventually, run_tests, Server

BUILD = PROGRAMS = None

# $1: the user of the program. $2: its groups besides root.
CONTAINER = """
mount --bind /run/rcuda/containers /run/rcuda
ip link set lo up 2>/dev/null || true
user=$1 groups=$2
shift 2
exec setpriv --reuid "$user" --regid 0 --groups "$groups" "$@"
"""
NOBODY, ROOT, NO_ACCOUNT = 65534, 0, 65533
DISK = 6


def in_container(user, *command, namespaces=("--mount", "--net")):
    return ["unshare", *namespaces, "sh", "-ec", CONTAINER, "sh", str(user), str(DISK), *command]


class ContainerSocketTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tried = subprocess.run(["unshare", "--mount", "--net", "setpriv", "--reuid", str(NOBODY), "cat",
                                os.path.join(BUILD, "lib/librcuda.so")], stdout=subprocess.DEVNULL, cwd="/")
        if os.geteuid() != 0 or tried.returncode != 0:
            print("SKIPPED: not root, no namespaces, or the build folder is closed to other users")
            raise SystemExit(77)

    def server(self, *options):
        server = Server(BUILD, options=options)
        self.addCleanup(lambda: self.assertEqual(server.stop(), 0, server.text()))
        return server

    def environment(self, server, transport):
        return dict(client_environment(BUILD, [], transport), RCUDA_DEVICES=f"local@{server.port}:0")

    def program(self, server, user, transport="auto"):
        return subprocess.run(in_container(user, os.path.join(PROGRAMS, "vector_add")), capture_output=True, text=True,
                              timeout=60, cwd="/", env=self.environment(server, transport))

    def test_root_is_refused(self):
        server = self.server("--users", "*")
        refused = self.program(server, ROOT)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("root of another machine or of a container is not root", refused.stderr, server.text())
        self.assertIn("--users root", refused.stderr)
        self.assertEqual(server.sessions(BUILD), {})

    def test_root_is_served_where_the_setting_names_it(self):
        server = self.server("--users", "root")
        done = self.program(server, ROOT)
        self.assertEqual(done.returncode, 0, done.stderr + server.text())

    def test_a_user_has_the_groups_of_its_account(self):
        server = self.server("--users", "nobody")
        with subprocess.Popen(in_container(NOBODY, os.path.join(BUILD, "tests/e2e/endless")), cwd="/", text=True,
                              stdout=subprocess.PIPE, env=self.environment(server, "auto")) as client:
            self.addCleanup(client.kill)
            self.assertEqual(client.stdout.readline(), "running\n", server.text())
            (worker,) = server.sessions(BUILD).values()
            with open(f"/proc/{worker}/status") as file:
                status = {name: value.split() for name, _, value in (line.partition(":") for line in file)}
            self.assertEqual(status["Uid"], [str(NOBODY)] * 4)
            self.assertEqual(status["Gid"], [str(NOBODY)] * 4, "not root's, which the process has")
            self.assertNotIn(str(DISK), status["Groups"])
            client.kill()
        self.assertTrue(eventually(lambda: not server.sessions(BUILD)))

    def test_an_operator_is_a_user_there(self):
        server = self.server("--users", "nobody", "--operators", "nobody")
        drain = [os.path.join(BUILD, "bin/rcuda-smi"), "drain", f"127.0.0.1:{server.port}"]
        # The tool uses this machine's network: tools connect over TCP, with a ticket from the local socket.
        refused = subprocess.run(in_container(NOBODY, *drain, namespaces=["--mount"]), capture_output=True, text=True,
                                 timeout=60, cwd="/", env=self.environment(server, "auto"))
        self.assertNotEqual(refused.returncode, 0, server.text())
        self.assertIn("may not drain this server", refused.stderr, server.text())
        done = self.program(server, NOBODY)
        self.assertEqual(done.returncode, 0, done.stderr + server.text())

    def test_others_are_refused(self):
        server = self.server("--users", "root")
        for user in (NOBODY, NO_ACCOUNT):
            refused = self.program(server, user)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("refused", server.text())
        self.assertIn("does not serve user nobody", server.text())

    def test_the_socket_is_for_everybody_and_ends_with_the_server(self):
        server = Server(BUILD, options=("--users", "@12"))
        path = f"/run/rcuda/containers/{server.port}.sock"
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o666)
        self.assertEqual(server.stop(), 0)
        self.assertFalse(os.path.exists(path))


if __name__ == "__main__":
    run_tests(globals(), "programs")
