#!/usr/bin/env python3
"""A client and a server in separate networks. The link between the networks goes down and comes back, and no socket
gets an error.

    network_loss_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import subprocess

from auth_case import AuthCase
from servers import client_environment, eventually, run_tests

BUILD = PROGRAMS = None
SERVER, CLIENT, OTHER = "10.77.0.1", "10.77.0.2", "10.77.0.3"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class NetworkLossTest(AuthCase):
    def setUp(self):
        super().setUp()
        self.networks = {side: f"rcuda-{side}-{os.getpid()}" for side in ("server", "client")}
        try:
            for network in self.networks.values():
                ip("netns", "add", network)
                self.addCleanup(ip, "netns", "del", network)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no network namespaces here: {error}")
        server, client = self.networks.values()
        ip("-n", server, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", client)
        for network, address in ((server, SERVER), (client, CLIENT)):
            ip("-n", network, "addr", "add", address + "/24", "dev", "wire")
            for device in ("lo", "wire"):
                ip("-n", network, "link", "set", device, "up")

    def within(self, side):
        return ["ip", "netns", "exec", self.networks[side]]

    def start_server(self):
        return self.server(wrapper=self.within("server"), RCUDA_SERVER_LISTEN="0.0.0.0", RCUDA_SERVER_RECONNECT_TIMEOUT="5m")

    def start(self, server, **settings):
        token = self.token_file(self.make_token(server))
        environment = dict(client_environment(self.build, [], "tcp", RCUDA_TOKEN_FILE=token, **settings),
                           RCUDA_DEVICES=f"{SERVER}@{server.port}:0")
        log = open(self.path("client.log"), "w+")
        self.addCleanup(log.close)
        run = subprocess.Popen([*self.within("client"), os.path.join(self.build, "tests/e2e/endless")], env=environment,
                               text=True, stdout=subprocess.PIPE, stderr=log)
        self.addCleanup(lambda: (run.kill(), run.communicate()))
        self.assertEqual(run.stdout.readline(), "running\n", self.client_text())
        return run

    def client_text(self):
        with open(self.path("client.log")) as log:
            return log.read()

    def session(self, server):
        """The only session, as rcuda-smi describes it."""
        smi = subprocess.run([*self.within("server"), os.path.join(self.build, "bin/rcuda-smi"), "--json",
                              f"127.0.0.1@{server.port}"], capture_output=True, text=True, check=True)
        return json.loads(smi.stdout)[0]["sessions"][0]

    def set_link(self, state):
        ip("-n", self.networks["client"], "link", "set", "wire", state)

    def check_survives(self, meanwhile):
        server = self.start_server()
        run = self.start(server, RCUDA_RECONNECT="5m")
        self.set_link("down")
        meanwhile()
        # Both sides notice the loss while the link is down, the server without peer_timeout.
        for text in (self.client_text, server.text):
            self.assertTrue(eventually(lambda: "the connection is lost" in text()), text())
        self.set_link("up")
        for text in (self.client_text, server.text):
            self.assertTrue(eventually(lambda: "the connection is back after" in text()), text())
        commands = self.session(server)["commands"]
        self.assertTrue(eventually(lambda: self.session(server)["commands"] > commands), server.text())
        self.assertIsNone(run.poll(), self.client_text())
        self.assertEqual(self.session(server)["losses"], 1)
        self.assertEqual(server.text().count("the connection is lost"), 1, server.text())
        self.assertEqual(self.client_text().count("the connection is lost"), 1, self.client_text())

    def test_a_link_that_comes_back(self):
        self.check_survives(lambda: None)

    def test_a_link_that_comes_back_with_another_address(self):
        def move():
            ip("-n", self.networks["client"], "addr", "del", CLIENT + "/24", "dev", "wire")
            ip("-n", self.networks["client"], "addr", "add", OTHER + "/24", "dev", "wire")
        self.check_survives(move)

    def test_without_reconnecting_the_client_names_the_setting(self):
        server = self.start_server()
        run = self.start(server, RCUDA_RECONNECT="0")
        self.set_link("down")
        run.wait()
        self.assertIn("silent for 10s", self.client_text())
        self.assertIn("RCUDA_RECONNECT", self.client_text())


if __name__ == "__main__":
    run_tests(globals(), "programs")
