#!/usr/bin/env python3
"""Runs README's first commands, word for word, on two GPU nodes and a user's machine. Each of them has its own network,
name and home folder.

    readme_test.py --build FOLDER [unittest arguments]
"""

import os
import re
import subprocess
import tempfile
import unittest

from servers import eventually, run_tests

BUILD = None
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MACHINES = ("node1", "node2", "login")
NODES = MACHINES[:2]
NOBODY = 65534


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def first_commands():
    """The lines of README's first block, without their comments."""
    with open(os.path.join(SOURCE, "README.md")) as readme:
        block = re.search(r"(?m)(?:^    .+\n)+", readme.read())[0]
    return [line.split("#")[0].strip() for line in block.splitlines()]


class ReadmeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.chmod(self.folder, 0o755)
        self.networks = {name: f"rcuda-{name}-{os.getpid()}" for name in (*MACHINES, "switch")}
        try:
            for network in self.networks.values():
                ip("netns", "add", network)
                self.addCleanup(ip, "netns", "del", network)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no network namespaces here: {error}")
        identity = dict(user=NOBODY, group=NOBODY, extra_groups=[])
        if subprocess.run(["test", "-x", os.path.join(BUILD, "bin/rcuda-server")], **identity).returncode != 0:
            self.skipTest("the build folder is closed to other users")
        self.connect()
        for name in MACHINES:
            os.mkdir(self.home(name))
            os.chown(self.home(name), NOBODY, NOBODY)

    def connect(self):
        switch = self.networks["switch"]
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        with open(os.path.join(self.folder, "hosts"), "w") as hosts:
            hosts.write("127.0.0.1 localhost\n")
            for number, name in enumerate(MACHINES, 1):
                network, address = self.networks[name], f"10.77.0.{number}"
                hosts.write(f"{address} {name}\n")
                ip("-n", network, "link", "add", "wire", "type", "veth", "peer", "name", name, "netns", switch)
                ip("-n", switch, "link", "set", name, "master", "bridge", "up")
                ip("-n", network, "addr", "add", address + "/24", "dev", "wire")
                for device in ("lo", "wire"):
                    ip("-n", network, "link", "set", device, "up")

    def home(self, machine):
        return os.path.join(self.folder, machine)

    def start(self, machine, command, number=0, **more):
        """Starts a command as an ordinary user on the machine."""
        script = (f"hostname {machine} && mount --bind {self.folder}/hosts /etc/hosts && cd {self.home(machine)} && "
                  f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c "exec $0"')
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("RCUDA_", "XDG_CONFIG_HOME"))}
        environment.update(HOME=self.home(machine), PATH=os.path.join(BUILD, "bin") + ":" + os.environ["PATH"],
                           RCUDA_DRIVER="softgpu", SOFTGPU_NODE=str(number))
        return subprocess.Popen(["ip", "netns", "exec", self.networks[machine], "unshare", "-u", "-m", "sh", "-c", script,
                                 command], env=environment, text=True, stderr=subprocess.PIPE, **more)

    def run_on(self, machine, command, given=""):
        run = self.start(machine, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        output, errors = run.communicate(given, timeout=100)
        self.assertEqual(run.returncode, 0, errors)
        return output

    def serve(self, machine, command, number):
        log = open(os.path.join(self.folder, machine + ".log"), "w+")
        self.addCleanup(log.close)
        server = self.start(machine, command + " 2>&1", number, stdout=log)

        def stop():
            server.terminate()
            self.assertEqual(server.wait(timeout=60), 0)
            server.stderr.close()
        self.addCleanup(stop)

        def text():
            with open(log.name) as file:
                return file.read()
        self.assertTrue(eventually(lambda: ": serving " in text() or server.poll() is not None), text())
        self.assertIn(": serving ", text())

    def test_the_first_commands(self):
        serve, create, add, run = first_commands()
        for number, node in enumerate(NODES):
            self.serve(node, serve, number)
        lines = [self.run_on(node, create) for node in NODES]
        self.assertEqual([line.split()[0] for line in lines], list(NODES))
        self.run_on("login", add, "".join(lines))
        self.assertIn(" ./app", run)
        os.symlink(os.path.join(BUILD, "lib/rcuda/demo"), os.path.join(self.home("login"), "app"))
        self.assertIn("1728 points on 2 devices, 0 wrong\n", self.run_on("login", run))


if __name__ == "__main__":
    run_tests(globals())
