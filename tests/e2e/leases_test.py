#!/usr/bin/env python3
"""Leases of a server's devices: what operators, clients with a key and clients without one may do,
and what happens when a lease ends.

    leases_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import unittest

from proxy import Proxy
from servers import client_environment, eventually, make_token, run_tests, Server, UNUSABLE_SETTINGS

BUILD = PROGRAMS = None
TRANSPORTS = ("shm", "tcp")
NOBODY = 65534
OTHER = 65533


class LeasesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def server(self, *options, stops=True, **settings):
        environment = {"SOFTGPU_DEVICES": "4", "RCUDA_SERVER_AUDIT": self.path("audit"),
                       "RCUDA_SERVER_STOP_TIMEOUT": "20s", **settings}
        server = Server(BUILD, options=options, environment=environment)

        def stop():
            self.assertEqual(server.stop(), 0, server.text())
        if stops:
            self.addCleanup(stop)
        return server

    def rcuda_lease(self, server, command, *arguments, user=None):
        identity = {} if user is None else dict(user=user, group=user, extra_groups=[], cwd="/")
        if command in ("take", "extend") and "--for" not in arguments:
            arguments = (*arguments, "--for", "never")
        return subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), command, f"127.0.0.1:{server.port}",
                               *arguments], capture_output=True, text=True, timeout=120, **identity)

    def must(self, *arguments, **more):
        result = self.rcuda_lease(*arguments, **more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def take(self, server, *arguments, **more):
        """Takes a lease. Returns the variables that the command prints."""
        lines = self.must(server, "take", *arguments, **more).stdout.splitlines()
        variables = dict(line.split("=", 1) for line in lines)
        self.assertEqual(sorted(variables), ["RCUDA_DEVICES", "RCUDA_LEASE"])
        return variables

    def leases(self, server, *arguments, **more):
        return json.loads(self.must(server, "list", "--json", *arguments, **more).stdout)

    def audit(self, event):
        with open(self.path("audit")) as file:
            return [line for line in map(json.loads, file) if line["event"] == event]

    def environment(self, server, transport, devices=None, **variables):
        environment = client_environment(BUILD, [server], transport)
        if devices:
            environment["RCUDA_DEVICES"] = ",".join(server.address(gpu) for gpu in devices)
        return dict(environment, **variables)

    def run_program(self, environment, user=None):
        identity = {} if user is None else dict(user=user, group=user, extra_groups=[], cwd="/")
        return subprocess.run([os.path.join(PROGRAMS, "vector_add")], env=environment, text=True,
                              capture_output=True, timeout=120, **identity)

    def check_works(self, environment, **more):
        result = self.run_program(environment, **more)
        self.assertEqual(result.returncode, 0, result.stderr)

    def check_refused(self, environment, *texts, **more):
        result = self.run_program(environment, **more)
        self.assertEqual(result.returncode, 1, result.stdout)
        for text in ("cudaErrorNoDevice", *texts):
            self.assertIn(text, result.stderr)

    def start_session(self, environment):
        """Starts a program that runs until its session ends. Its stderr goes to a file."""
        log = tempfile.TemporaryFile("w+")
        self.addCleanup(log.close)
        process = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment,
                                   stdout=subprocess.PIPE, stderr=log, text=True)
        process.log = log
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "running\n", self.said(process))
        return process

    def said(self, process):
        with open(f"/proc/self/fd/{process.log.fileno()}") as log:
            return log.read()

    def check_ended(self, process, *texts):
        self.assertEqual(process.wait(timeout=120), 3, self.said(process))
        lines = [line for line in self.said(process).splitlines() if "is lost" in line]
        self.assertEqual(len(lines), 1, self.said(process))
        for text in texts:
            self.assertIn(text, lines[0])

    # ---- sessions ----

    def test_an_exclusive_lease_is_for_the_holder_of_its_key(self):
        server = self.server()
        lease = self.take(server, "--devices", "2", "--job", "slurm 1")
        self.assertEqual(lease["RCUDA_DEVICES"], f"{server.address(0)},{server.address(1)}")
        secret = lease["RCUDA_LEASE"].split(":")[1]
        for transport in TRANSPORTS:
            self.check_works(self.environment(server, transport, **lease))
            self.check_works(self.environment(server, transport, (2, 3)))
            self.check_refused(self.environment(server, transport, (2, 1)),
                               "device 1 is leased exclusively", "set RCUDA_LEASE", "not leased: 2 and 3")
            self.check_refused(self.environment(server, transport, (0, 2), RCUDA_LEASE=lease["RCUDA_LEASE"]),
                               "has devices 0 and 1 of this server, not device 2")
            wrong = lease["RCUDA_LEASE"].replace(secret, "0" * 32)
            self.check_refused(self.environment(server, transport, (0,), RCUDA_LEASE=wrong),
                               "has ended, or belongs to another server")
        self.check_refused(self.environment(server, "shm", RCUDA_LEASE="nonsense"),
                           "entry 1 of RCUDA_LEASE is not usable")

        def devices():
            return [line["devices"] for line in self.audit("session") if line.get("job") == "slurm 1"]
        self.assertTrue(eventually(lambda: devices() == [[0, 1], [0, 1]]), devices())
        for text in (server.text(), str(self.audit("session")), str(self.audit("refused"))):
            self.assertNotIn(secret, text)

    def test_the_user_of_a_lease_needs_no_secret(self):
        server = self.server()
        for options, works in ((["--user", str(os.geteuid())], True), ([], False)):
            self.take(server, *options, "--id", "1a2b3c4d")
            for transport in TRANSPORTS:
                environment = self.environment(server, transport, RCUDA_LEASE="1a2b3c4d")
                self.check_works(environment) if works else self.check_refused(environment, "has ended, or belongs")
            self.must(server, "revoke", "1a2b3c4d")

    def test_what_the_sessions_of_a_lease_did(self):
        server = self.server()
        lease = self.take(server, "--devices", "2", "--job", "slurm 1")
        for _ in range(2):
            self.check_works(self.environment(server, "tcp", **lease))
        self.assertTrue(eventually(lambda: self.leases(server)[0]["sessions"] == 0))
        done = json.loads(self.must(server, "revoke", "--job", "slurm 1", "--json").stdout)[0]
        self.assertEqual(done["begun"], 2)
        for counter in ("device_ms", "commands", "launches", "bytes_to_device"):
            self.assertGreater(done[counter], 0, counter)
        lease = self.take(server, "--devices", "2", "--job", "slurm 1")
        self.assertEqual(self.leases(server)[0]["begun"], 0)

    def test_a_server_can_demand_leases(self):
        server = self.server("--require-lease")
        self.check_refused(self.environment(server, "shm"), "only sessions with a lease", "rcuda-lease take")
        lease = self.take(server, "--shared")
        for transport in TRANSPORTS:
            self.check_works(self.environment(server, transport, **lease))

    def test_shared_leases(self):
        server = self.server()
        first, second = (self.take(server, "--shared", "--devices", "3") for _ in range(2))
        self.assertEqual(first["RCUDA_DEVICES"], ",".join(map(server.address, (0, 1, 2))))
        self.assertEqual(second["RCUDA_DEVICES"], ",".join(map(server.address, (0, 1, 3))))
        for variables in (first, second, {}):
            self.check_works(self.environment(server, "shm", **variables))
        self.assertIn("available: ", self.rcuda_lease(server, "take").stderr)

    def test_a_client_waits_for_the_end_of_a_lease(self):
        server = self.server()
        self.take(server, "--job", "slurm 1")
        program = subprocess.Popen([os.path.join(PROGRAMS, "vector_add")], stderr=subprocess.PIPE, text=True,
                                   stdout=subprocess.DEVNULL,
                                   env=self.environment(server, "shm", RCUDA_WAIT="100s"))
        self.addCleanup(program.stderr.close)
        line = program.stderr.readline()
        self.assertIn("waiting at place 1 of the queue", line)
        self.assertIn("device 0 is leased exclusively", line)
        self.must(server, "revoke", "--job", "slurm 1")
        self.assertEqual(program.wait(timeout=120), 0)

    def check_lease_on_the_network(self, server, seen, **settings):
        """Runs a program and the command through a proxy, which stands for the network."""
        proxy = Proxy(server.port)
        self.addCleanup(proxy.close)
        lease = self.take(server, "--devices", "=1")
        identifier, secret = lease["RCUDA_LEASE"].split("=")[1].split(":")
        self.check_works(self.environment(server, "tcp", RCUDA_DEVICES=f"127.0.0.1@{proxy.port}:1",
                                          RCUDA_LEASE=f"127.0.0.1@{proxy.port}={identifier}:{secret}", **settings))
        self.assertNotIn(bytes.fromhex(secret), proxy.seen)
        self.assertEqual(identifier.encode() in proxy.seen, seen)

    def test_a_lease_crosses_the_network_under_tls(self):
        settings = make_token(BUILD, os.path.dirname(self.path("token")))
        self.check_lease_on_the_network(self.server(**settings), False, RCUDA_TOKEN_FILE=self.path("token"))

    def test_without_tls_a_lease_is_named_if_the_user_says_so(self):
        server = self.server("--insecure")
        self.check_lease_on_the_network(server, True, RCUDA_SECURITY="none")

    # ---- the end of leases ----

    def test_a_revoked_lease_ends_its_sessions_only(self):
        server = self.server()
        for transport in TRANSPORTS:
            lease = self.take(server, "--devices", "2", "--job", "slurm 1")
            ends = self.start_session(self.environment(server, transport, **lease))
            stays = self.start_session(self.environment(server, transport, (2,)))
            self.assertEqual([one["sessions"] for one in self.leases(server)], [1])
            smi = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), f"127.0.0.1:{server.port}"],
                                 capture_output=True, text=True, check=True).stdout
            self.assertEqual(smi.count("job slurm 1"), 1, smi)
            self.must(server, "revoke", "--job", "slurm 1")
            self.check_ended(ends, "of slurm 1 was revoked")
            self.assertIsNone(stays.poll())
            self.assertEqual(self.leases(server), [])
            self.check_refused(self.environment(server, transport, **lease), "has ended")
            # The devices are free once the session has ended.
            self.take(server, "--devices", "3", "--job", "slurm 2", "--wait", "60s")
            self.must(server, "revoke", "--job", "slurm 2")
            stays.kill()
            stays.wait()
        self.assertTrue(eventually(lambda: any("was revoked" in line["end"] for line in self.audit("session"))))

    def test_an_expired_lease_ends_its_sessions(self):
        server = self.server()
        lease = self.take(server, "--for", "1d", "--job", "slurm 1")
        session = self.start_session(self.environment(server, "tcp", **lease))
        identifier = self.leases(server)[0]["id"]
        self.must(server, "extend", identifier, "--for", "1s")
        self.check_ended(session, "of slurm 1 has expired")
        self.assertEqual(self.leases(server), [])
        self.assertEqual([line["what"] for line in self.audit("lease")], ["taken", "extended", "expired"])
        self.assertIn("there is no lease", self.rcuda_lease(server, "extend", identifier, "--for", "1h").stderr)

    def test_a_client_that_is_stopped_keeps_no_device(self):
        server = self.server(RCUDA_SERVER_STOP_TIMEOUT="1s")
        lease = self.take(server, "--job", "slurm 1")
        session = self.start_session(self.environment(server, "shm", **lease))
        session.send_signal(signal.SIGSTOP)
        self.must(server, "revoke", "--job", "slurm 1")
        self.take(server, "--devices", "4", "--wait", "60s")

    def test_a_worker_that_is_stopped_keeps_no_device(self):
        server = self.server(RCUDA_SERVER_STOP_TIMEOUT="1s")
        lease = self.take(server, "--job", "slurm 1")
        session = self.start_session(self.environment(server, "shm", **lease))
        os.kill(server.sessions(BUILD)[session.pid], signal.SIGSTOP)
        self.must(server, "revoke", "--job", "slurm 1")
        self.take(server, "--devices", "4", "--wait", "60s")
        self.assertIn("did not end its session in time and is killed", server.text())

    # ---- batch systems ----

    def test_prologs_and_epilogs_may_run_twice(self):
        server = self.server()
        first, second = (self.take(server, "--devices", "2", "--job", "slurm 1") for _ in range(2))
        self.assertEqual(first, second)
        self.assertIn("already has lease", self.rcuda_lease(server, "take", "--job", "slurm 1").stderr)
        self.assertEqual(len(self.leases(server, "--job", "slurm 1")), 1)
        self.assertEqual(self.leases(server, "--job", "slurm 2"), [])
        self.assertEqual(self.must(server, "revoke", "--job", "slurm 1").stderr, "")
        self.assertIn("there is no lease of slurm 1", self.must(server, "revoke", "--job", "slurm 1").stderr)

    # If a lease were endless by mistake, it would keep its devices until an administrator notices.
    def test_a_lease_says_how_long_it_lasts(self):
        server = self.server()
        name = f"127.0.0.1:{server.port}"
        for arguments, status, said in ((["take", name], 2, "--for is missing: write how long the lease lasts: a time from now such as 90m"),
                                        (["extend", name, "1a2b3c4d"], 2, "--for is missing: write how long the lease lasts: a time from now such as 90m, 12h, 30d or 8w, or never "
                                         "(until somebody revokes the lease)"),
                                        (["take", name, "--for", "2x"], 2, "rcuda-lease: --for: \"2x\" is not usable: write a time from now such as 90m"),
                                        (["take", name, "--for", "1h", "--wait", "x"], 2, '--wait: "x" is not usable: write a time such as 30s'),
                                        (["take", name, "--for", "1h", "--devices", "x"], 2, '--devices: "x" is not usable: write a number'),
                                        (["take", name, "--for", "1h", "--id", "x"], 2, '--id: "x" is not usable: an id has eight'),
                                        (["take", "a:b:c", "--for", "1h"], 2, '"a:b:c" is not a server'),
                                        (["list", "a:b:c"], 2, '"a:b:c" is not a server'),
                                        (["take", name, "--for", "1h"], 0, ""), (["take", name, "--for", "never"], 0, "")):
            run = subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, status, run.stderr)
            self.assertIn(said, run.stderr)
        self.assertEqual(sorted(lease["until"] is None for lease in self.leases(server)), [False, True])
        look = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), name], capture_output=True, text=True, timeout=60)
        self.assertRegex(look.stdout, r"(?m)^ +device 0 .*, leased until \S+ \(lease [0-9a-f]{8}\)$")
        self.assertRegex(look.stdout, r"(?m)^ +device 1 .*, leased \(lease [0-9a-f]{8}\)$")

    def test_a_lease_of_a_user_who_is_not_served_is_reported(self):
        for users, user, is_reported in (("root", "65534", True), ("root,65534", "65534", False), ("*", "65534", False),
                                         ("", "65534", False), ("root", "0", False)):  # with "", a token is enough
            with self.subTest(users=users, user=user):
                server = self.server(RCUDA_SERVER_USERS=users)
                taken = self.must(server, "take", "--user", user)
                self.assertIn("RCUDA_LEASE=", taken.stdout)
                said = f'this server does not serve user {user}, so this user cannot use the lease: add {user} to its setting "users"'
                self.assertEqual(said in taken.stderr, is_reported, taken.stderr)

    def test_who_has_the_devices(self):
        server = self.server()
        self.take(server, "--devices", "=1,3", "--job", "slurm 1")
        self.start_session(self.environment(server, "shm"))
        result = self.rcuda_lease(server, "take", "--devices", "2", "--wait", "1s")
        self.assertEqual(result.returncode, 1)
        for text in ("the request asks for 2 devices, and 1 is available", "device 0 has a session of",
                     "device 1 has lease", "of slurm 1"):
            self.assertIn(text, result.stderr)

    def test_leases_outlive_the_daemon(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        settings = dict(RCUDA_SERVER_LEASES=self.path("leases"))
        server = self.server("--port", port, stops=False, **settings)
        lease = self.take(server, "--job", "slurm 1")
        self.assertEqual(os.stat(self.path("leases")).st_mode & 0o7777, 0o600)
        server.process.kill()
        server.process.wait()
        server = self.server("--port", port, **settings)
        self.assertEqual(self.take(server, "--job", "slurm 1"), lease)
        # The command waits for the first worker, which finds out which devices there are.
        self.take(server, "--devices", "3", "--job", "slurm 2")
        self.must(server, "revoke", "--job", "slurm 2")
        self.check_refused(self.environment(server, "shm"), "device 0 is leased exclusively")
        self.check_works(self.environment(server, "shm", **lease))
        self.must(server, "revoke", "--job", "slurm 1")
        with open(self.path("leases")) as file:
            self.assertNotIn("slurm 1", file.read())

    def test_a_bad_file_is_found_before_the_start(self):
        with open(self.path("leases"), "w") as file:
            file.write("1a2b3c4d\n")
        os.chmod(self.path("leases"), 0o600)
        result = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--check-config"], text=True,
                                capture_output=True, timeout=60,
                                env=dict(os.environ, RCUDA_SERVER_LEASES=self.path("leases")))
        self.assertEqual(result.returncode, UNUSABLE_SETTINGS, result.stdout)
        self.assertIn(f"{self.path('leases')}: line 1 is damaged", result.stderr)

    def test_a_long_list_comes_in_parts(self):
        server = self.server()
        jobs = [f"slurm {number}" for number in range(40)]
        for job in jobs:
            self.take(server, "--shared", "--job", job)
        listed = [lease["job"] for lease in self.leases(server)]
        self.assertEqual(sorted(listed), sorted(jobs))

    # ---- users ----

    def as_other_users(self):
        if os.geteuid() != 0:
            self.skipTest("only root can be another user")
        if subprocess.run(["cat", os.path.join(BUILD, "lib/librcuda.so")], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, cwd="/", user=NOBODY, group=NOBODY).returncode != 0:
            self.skipTest("the build folder is closed to other users")

    def test_a_lease_of_a_user(self):
        self.as_other_users()
        server = self.server("--users", f"{NOBODY},{OTHER}")
        lease = self.take(server, "--user", str(NOBODY))
        for transport in TRANSPORTS:
            environment = self.environment(server, transport, **lease)
            self.check_works(environment, user=NOBODY)
            self.check_refused(environment, "is for user nobody, not for", user=0)
        self.take(server, "--job", "slurm 1")
        # A user sees only the own leases, and no secrets.
        own = self.leases(server, user=NOBODY)
        self.assertEqual([one["user"] for one in own], ["nobody"])
        self.assertEqual(self.leases(server, user=OTHER), [])
        self.assertEqual(len(self.leases(server)), 2)
        self.assertIn("has no user nobody-at-all", self.rcuda_lease(server, "take", "--user", "nobody-at-all").stderr)

    def test_operators(self):
        self.as_other_users()
        server = self.server("--users", str(OTHER), "--operators", str(NOBODY))
        for arguments in (("take",), ("revoke", "--job", "slurm 1"), ("extend", "--job", "slurm 1")):
            refused = self.rcuda_lease(server, *arguments, user=OTHER)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("may not lease devices", refused.stderr)
            self.assertIn("RCUDA_SERVER_OPERATORS", refused.stderr)
        lease = self.take(server, "--user", str(OTHER), "--job", "slurm 1", user=NOBODY)
        result = self.run_program(self.environment(server, "tcp", **lease), user=OTHER)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.must(server, "revoke", "--job", "slurm 1", user=NOBODY)
        self.assertEqual(self.audit("lease")[-1]["uid"], NOBODY)


if __name__ == "__main__":
    run_tests(globals(), "programs")
