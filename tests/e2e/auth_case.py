"""Shared by tests of clients on other machines. A proxy stands for the network: there is no local socket for the
proxy's port, so a client that connects to the proxy gets no ticket.
"""

import os
import subprocess
import sys
import tempfile
import unittest

from proxy import Proxy
from servers import audit_lines, client_environment, Server
from tls_client import TlsConnection

EXPECTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/expected")
REFUSAL, STATUS, AUTHENTICATE, AUTHENTICATED = 4, 6, 14, 15


class AuthCase(unittest.TestCase):
    def setUp(self):
        test = sys.modules[type(self).__module__]  # this module has the options
        self.build, self.programs = test.BUILD, test.PROGRAMS
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        os.chmod(self.folder.name, 0o755)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def server(self, name="server", index=0, user=None, options=(), wrapper=(), **settings):
        if user is not None:
            os.chown(self.folder.name, user, user)  # the server makes its certificate in this folder
        environment = {"RCUDA_SERVER_TOKENS": self.path(name + ".tokens"),
                       "RCUDA_SERVER_CERTIFICATE": self.path(name + ".pem"),
                       "RCUDA_SERVER_AUDIT": self.path(name + ".audit"),
                       "RCUDA_SERVER_USERS": "root", **settings}
        server = Server(self.build, index=index, environment=environment, user=user, options=options,
                        wrapper=wrapper)
        server.name = name

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        return server

    def tls_connection(self, server):
        connection = TlsConnection(server.port)
        self.addCleanup(connection.close)
        return connection

    def proxy(self, server):
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        return proxy

    def rcuda_token(self, server, *arguments):
        return subprocess.run(
            [os.path.join(self.build, "bin/rcuda-token"), arguments[0], "--file",
             self.path(server.name + ".tokens"), *arguments[1:]],
            capture_output=True, text=True, check=True).stdout.strip()

    def make_token(self, server, *options):
        user = () if "--user" in options else ("--user", str(os.geteuid()))
        return self.rcuda_token(server, "create", "--server", "*", "--certificate", self.path(server.name + ".pem"), "--expires", "never",
                                *user, *options)

    def token_file(self, *lines, mode=0o600):
        path = self.path("token")
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        os.chmod(path, mode)
        return path

    def run_program(self, addresses, program="vector_add", **settings):
        environment = client_environment(self.build, [], "tcp")
        environment.update(RCUDA_DEVICES=",".join(addresses), HOME=self.folder.name,
                           XDG_CONFIG_HOME=self.folder.name, RCUDA_MUNGE_SOCKET=self.path("none"))
        environment.update(settings)
        return subprocess.run([os.path.join(self.programs, program)], env=environment, text=True,
                              capture_output=True, timeout=300)

    def run_tool(self, name, *arguments, **settings):
        environment = dict(os.environ, HOME=self.folder.name, XDG_CONFIG_HOME=self.folder.name,
                           RCUDA_MUNGE_SOCKET=self.path("none"))
        environment.update(settings)
        return subprocess.run([os.path.join(self.build, "bin", name), *arguments], env=environment,
                              capture_output=True, text=True, timeout=60)

    def assert_works(self, result, program="vector_add"):
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(os.path.join(EXPECTED, program + ".txt")) as expected:
            self.assertEqual(result.stdout, expected.read())

    def assert_refused(self, result, *reasons):
        self.assertNotEqual(result.returncode, 0, result.stdout)
        self.assertEqual(result.stderr.count("rcuda["), 1, result.stderr)
        for reason in reasons:
            self.assertIn(reason, result.stderr)

    def audit(self, server, *events):
        return audit_lines(self.path(server.name + ".audit"), *events)
