#!/usr/bin/env python3
"""rcuda-doctor SERVER: what it reports about a server, up to the first problem.

    doctor_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import pwd
import socket

from auth_case import AuthCase
from servers import run_tests

BUILD = PROGRAMS = None


class DoctorTest(AuthCase):
    def ask(self, port, result, *texts, **settings):
        """Runs the doctor. Each text must be in a line of its own, in this order."""
        asked = self.run_tool("rcuda-doctor", f"127.0.0.1:{port}", **settings)
        self.assertEqual((asked.returncode, asked.stderr), (result, ""), asked.stdout)
        lines = iter(asked.stdout.splitlines())
        self.assertEqual(next(lines), f"Server 127.0.0.1:{port}")
        for text in texts:
            self.assertTrue(any(text in line for line in lines), (text, asked.stdout))
        return asked.stdout

    def test_a_server_of_another_machine(self):
        server = self.server()
        port = self.proxy(server).port
        token = self.make_token(server)
        tokens = self.token_file(token)
        name = token.split(".")[1]
        self.ask(port, 0, "ok       name: 127.0.0.1 is 127.0.0.1", f"ok       port: {port} accepts connections",
                 f"ok       token {name} for this server, in {tokens}", "ok       TLS 1.3: the server and this user have proved",
                 "ok       user: the server knows this user as ", "ok       build: the server runs rcuda ",
                 "ok       clock: ", "ok       sessions: 1 device (", "sessions use tcp", RCUDA_TOKEN_FILE=tokens)
        listed = json.loads(self.rcuda_token(server, "list", "--json"))
        self.assertRegex(listed[0]["last_use"], r"Z$")

    def test_this_machines_server_needs_no_token(self):
        server = self.server()
        said = self.ask(server.port, 0, "note     no token for this server in ", "note     no TLS: ",
                        " (ticket)", "ok       sessions use shm: the server is on this machine")
        self.assertNotIn("BROKEN", said)
        self.assertIn(f"knows this user as {pwd.getpwuid(os.geteuid()).pw_name} (uid {os.geteuid()}) (ticket)", said)

    def test_obstacles(self):
        server, other = self.server(), self.server("other", index=1)
        port = self.proxy(server).port
        with socket.create_server(("127.0.0.1", 0)) as listener:
            free = listener.getsockname()[1]
        self.ask(free, 1, "BROKEN   cannot connect to ")
        self.ask(port, 1, "BROKEN   token: ", RCUDA_TOKEN_FILE=self.path("no-such-file"))
        said = self.ask(port, 1, "note     no token for this server in ", "BROKEN   identity: ")
        self.assertNotIn("user:", said)
        readable = self.token_file(self.make_token(server), mode=0o644)
        self.ask(port, 1, "BROKEN   token: other users have access to " + readable, RCUDA_TOKEN_FILE=readable)
        wrong = self.token_file(self.make_token(other))
        self.ask(port, 1, "BROKEN   identity: ", RCUDA_TOKEN_FILE=wrong)


if __name__ == "__main__":
    run_tests(globals(), "programs")
