#!/usr/bin/env python3
"""A pool of two servers as README.md describes it: one file has the tokens for both, and RCUDA_DEVICES names GPUs in every
way. Each server has an address of its own.

    pools_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from servers import client_environment, run_tests, Server

BUILD = PROGRAMS = None
HOSTS = ("127.0.0.1", "127.0.0.2")
COUNT_DEVICES = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
print(count.value)
"""


class PoolsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.servers = []
        for index, host in enumerate(HOSTS):
            settings = dict(RCUDA_SERVER_TOKENS=self.path(host + "/tokens"), SOFTGPU_DEVICES="3", RCUDA_SERVER_USERS="root",
                            RCUDA_SERVER_CERTIFICATE=self.path(host + "/server.pem"))
            os.mkdir(self.path(host))
            server = Server(BUILD, index=index, options=("--listen", host), environment=settings)
            self.addCleanup(lambda server=server: self.assertEqual(server.stop(), 0, server.text()))
            self.servers.append(server)

    def path(self, name):
        return os.path.join(self.folder, name)

    def token(self, *arguments, **more):
        result = subprocess.run([os.path.join(BUILD, "bin/rcuda-token"), *arguments], capture_output=True, text=True, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def create(self, host, name=None):
        return self.token("create", "--server", name or host, "--user", str(os.geteuid()), "--file", self.path(host + "/tokens"),
                          "--certificate", self.path(host + "/server.pem"))

    def add(self, *lines):
        self.token("add", input="".join(lines), env=dict(os.environ, XDG_CONFIG_HOME=self.folder))

    def run_program(self, devices, *command):
        environment = client_environment(BUILD, [], "tcp", RCUDA_SECURITY="tls", XDG_CONFIG_HOME=self.folder,
                                         RCUDA_MUNGE_SOCKET=self.path("none"), LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda"))
        environment["RCUDA_DEVICES"] = devices
        return subprocess.run(command or [os.path.join(PROGRAMS, "vector_add")], env=environment, capture_output=True,
                              text=True, timeout=120)

    def check_refused(self, result, *texts):
        self.assertNotEqual(result.returncode, 0)
        for text in texts:
            self.assertIn(text, result.stderr)

    def both(self, gpus=("0", "0"), mark="@"):
        return ",".join(f"{host}{mark}{server.port}:{gpu}" for host, server, gpu in zip(HOSTS, self.servers, gpus))

    def test_tokens_of_two_servers(self):
        self.check_refused(self.run_program(self.both()), f"no credentials for the server {HOSTS[0]}:{self.servers[0].port}",
                           "there is no file " + self.path("rcuda/token"), "rcuda-token add")
        self.add(self.create(HOSTS[0]))
        self.check_refused(self.run_program(self.both()), f"no credentials for the server {HOSTS[1]}:{self.servers[1].port}",
                           f"{self.path('rcuda/token')} has tokens for {HOSTS[0]}", "rcuda-token create, on the server")
        self.add(self.create(HOSTS[1]))
        result = self.run_program(self.both())
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_token_of_another_server(self):
        self.add(self.create(HOSTS[0], "*"))
        result = self.run_program(self.both())
        self.check_refused(result, f"{HOSTS[1]}:{self.servers[1].port}: checking the server by the token ",
                           "has tokens for every server", "the token is another server's", "rcuda-token add")

    def test_names_of_gpus(self):
        self.add(*(self.create(host) for host in HOSTS))
        look = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), "--json", f"{HOSTS[0]}:{self.servers[0].port}"],
                              capture_output=True, text=True, env=dict(os.environ, XDG_CONFIG_HOME=self.folder))
        uuids = [device["uuid"] for device in json.loads(look.stdout)[0]["devices"]]
        self.assertEqual(len(set(uuids)), 3, look.stdout)
        first = f"{HOSTS[0]}@{self.servers[0].port}:"
        for devices, count in ((self.both(mark=":"), 2), (self.both(("0-2", "1-2")), 5), (self.both((uuids[2], "0")), 2),
                               (first + uuids[1] + "," + first + "0", 2)):
            with self.subTest(devices=devices):
                result = self.run_program(devices, sys.executable, "-c", COUNT_DEVICES)
                self.assertEqual((result.returncode, result.stdout), (0, f"{count}\n"), result.stderr)
        self.check_refused(self.run_program(first + "GPU-ffffffff"), "no device has the UUID", "GPU-ffffffff")
        self.check_refused(self.run_program(first + uuids[0] + "," + first + "0"), "is named twice")


if __name__ == "__main__":
    run_tests(globals(), "programs")
