#!/usr/bin/env python3
"""rcuda-smi: what it shows operators of servers, and what they can do to servers.

    operate_test.py --build FOLDER [unittest arguments]
"""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from servers import audit_lines, Server, client_environment, eventually, message, run_tests, WITH_MEMORY

BUILD = None
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Copies 1 MiB for each line of its input, until the input ends.
SESSION = WITH_MEMORY + """
print("ready", flush=True)
for line in sys.stdin:
    host = (ctypes.c_char * (1 << 20))()
    assert cuda.cuMemcpyHtoD_v2(memory, host, ctypes.c_size_t(1 << 20)) == 0
    print("copied", flush=True)
result = cuda.cuCtxSynchronize()
print(result, flush=True)
"""


# Asks NVML for the number of GPUs, which must fail. After a line of the input, asks again until NVML answers.
NVML_TWICE = """
import ctypes, sys, time
nvml, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
def found():
    return nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
assert not found()
print("found nothing", flush=True)
sys.stdin.readline()
while not found():
    time.sleep(0.1)
print("found", count.value, flush=True)
"""


class OperateTest(unittest.TestCase):
    def server(self, *options, **settings):
        server = Server(BUILD, options=options, environment=settings)
        self.addCleanup(server.stop)
        return server

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def session(self, server, medium="tcp"):
        program = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=client_environment(BUILD, [server], medium))
        for pipe in (program.stdin, program.stdout, program.stderr):
            self.addCleanup(pipe.close)
        self.addCleanup(program.wait)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "ready\n")
        return program

    def smi(self, *arguments, result=0):
        run = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), *map(str, arguments)], capture_output=True,
                             text=True, timeout=120)
        self.assertEqual(run.returncode, result, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def at(self, server):
        return f"127.0.0.1:{server.port}"

    def worker_of(self, server, program):
        return server.sessions(BUILD)[program.pid]

    # ---- what they see ----

    def test_a_refusal_is_one_line_that_controls_no_terminal(self):
        """The refusal is from a server that has not proved its identity."""
        text = "full\x1b]0;owned\x07\u009b2J\nroot# \u202e".encode()
        def refuse(listener):
            with contextlib.suppress(OSError):  # the listener is closed
                while True:
                    with listener.accept()[0] as connection:
                        connection.sendall(message(4, struct.pack("<2I", 1, len(text)) + text))
                        connection.recv(1 << 16)  # reads the question: otherwise close() would reset the connection
        with socket.create_server(("127.0.0.1", 0)) as listener:
            refusing = threading.Thread(target=refuse, args=(listener,), daemon=True)
            refusing.start()
            name = f"127.0.0.1:{listener.getsockname()[1]}"
            environment = dict(os.environ, RCUDA_SECURITY="none")
            for command in (["rcuda-smi", name], ["rcuda-smi", "top", name, "--rounds", "1"], ["rcuda-lease", "list", name],
                            ["rcuda-smi", "drain", name]):
                asked = subprocess.run([os.path.join(BUILD, "bin", command[0]), *command[1:]], env=environment,
                                       timeout=60, capture_output=True)
                output = asked.stdout + asked.stderr
                self.assertIn(b"full?]0;owned???2J?root# ???", output, command)
                self.assertFalse(re.search(rb"\x1b\]|\xc2|\xe2|\nroot", output), output)
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            refusing.join()

    def test_json_has_what_the_text_has(self):
        server = self.server()
        program = self.session(server)
        program.stdin.write("\n")
        program.stdin.flush()
        program.stdout.readline()

        def copied():
            nonlocal one
            one, = json.loads(self.smi("--json", self.at(server)))
            return one["sessions"][0]["bytes_to_device"] == 1 << 20
        one = None
        self.assertTrue(eventually(copied), one)
        session, = one["sessions"]
        self.assertEqual((session["pid"], session["medium"], session["devices"]), (program.pid, "tcp", [0]))
        self.assertEqual(session["worker"], self.worker_of(server, program))
        self.assertEqual(session["peak_memory"], 4 << 20, "whole pages of 2 MiB")
        self.assertEqual((one["draining"], one["waiting"]), (False, 0))
        device = one["devices"][0]
        self.assertEqual(device["sessions"], 1)
        self.assertGreater(device["total_bytes"], device["used_bytes"])
        # From the server's NVML, because without a limit the server itself does not count memory.
        self.assertGreaterEqual(session["used_bytes"], 3 << 20)
        self.assertGreaterEqual(device["used_bytes"], session["used_bytes"])
        self.assertIn(device["name"], self.smi(self.at(server)))

    def test_a_part_of_a_gpu_is_told_as_such(self):
        server = self.server(SOFTGPU_MIG="1", SOFTGPU_DEVICES="2", SOFTGPU_MEMORY="8G")
        one, = json.loads(self.smi("--json", self.at(server)))
        uuids = set()
        for device in one["devices"]:
            self.assertIn(" MIG ", device["name"])
            self.assertRegex(device["uuid"], "^MIG-")
            self.assertEqual(device["total_bytes"], 8 << 30)  # the memory of the slice, not of the whole GPU
            self.assertIsNone(device["utilization"])
            uuids.add(device["uuid"])
        self.assertEqual(len(uuids), 2)

    def test_a_server_without_a_pool_tells_its_gpus_at_once(self):
        server = self.server("--pool", "0")
        one, = json.loads(self.smi("--json", self.at(server)))
        self.assertEqual([device["ordinal"] for device in one["devices"]], [0])
        self.assertTrue(eventually(lambda: not server.workers()), server.text())
        self.assertIn("device 0", self.smi(self.at(server)))

    def test_the_keys_of_json_are_documented(self):
        server = self.server()
        self.session(server)
        one, = json.loads(self.smi("--json", self.at(server)))
        with open(os.path.join(SOURCE, "docs/monitoring.md")) as file:
            documented = set(re.findall(r"`(\w+)", file.read()))
        (device, *_), (session, *_) = one["devices"], one["sessions"]
        counters = [key for key in session if key.startswith(("bytes_", "peer_copies_"))]
        self.assertLess(0, len(counters))
        self.assertLessEqual({*one, *device, *session} - set(counters), documented)

    def test_json_names_the_server_that_is_not_there(self):
        server = self.server()
        gone = self.server()
        gone.stop()
        run = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), "--json", self.at(gone), self.at(server)],
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        first, second = json.loads(run.stdout)
        self.assertIn("cannot connect", first["error"])
        self.assertEqual(second["server"], self.at(server))

    def test_every_command_has_json(self):
        server = self.server()
        at = self.at(server)
        program = self.session(server)
        worker = self.worker_of(server, program)
        round_, = json.loads(self.smi("top", "--json", "--every", "0.1", "--rounds", "1", at))
        self.assertEqual([session["worker"] for session in round_["sessions"]], [worker])
        topology = json.loads(self.smi("topo", "--json", at))
        self.assertEqual([(gpu["device"], gpu["paths"]) for gpu in topology["gpus"]], [(server.address(0), ["X"])])
        self.assertEqual(topology["copies"], [])  # no copies, because there is only one server
        self.assertEqual(json.loads(self.smi("drain", "--no-wait", "--json", at)),
                         dict(server=at, sessions=1, draining=True))
        self.assertEqual(json.loads(self.smi("resume", "--json", at)), dict(server=at, sessions=1, draining=False))
        self.assertEqual(json.loads(self.smi("end", "--json", at, worker))["server"], at)
        program.communicate(timeout=60)
        drained = [json.loads(line) for line in self.smi("drain", "--json", at).splitlines()]
        self.assertTrue(drained[0]["draining"])
        self.assertEqual(drained[-1], dict(server=at, stopped=True))

    def test_gpus_are_listed(self):
        server = self.server(SOFTGPU_DEVICES="2")
        lines = self.smi("-L", self.at(server)).splitlines()
        self.assertEqual(len(lines), 2)
        for gpu, line in enumerate(lines):
            self.assertRegex(line, rf"^GPU {gpu}: .* \(UUID: GPU-[0-9a-f-]+\) {re.escape(server.address(gpu))}$")

    def test_the_servers_of_the_pool_are_shown(self):
        first, second = self.server(), self.server()
        run = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi")], capture_output=True, text=True, timeout=60,
                             env=dict(os.environ, RCUDA_DEVICES=f"{first.address()},{second.address()},{first.address(1)}"))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(re.findall(r"(?m)^(127\.0\.0\.1:\d+) ", run.stdout), [self.at(first), self.at(second)])
        for text in ("rcuda 0.", "(build ", "device 0"):
            self.assertIn(text, run.stdout)
        run = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi")], capture_output=True, text=True, timeout=60,
                             env=dict(os.environ, RCUDA_DEVICES="node1"))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("node1", run.stderr)

    def test_a_word_that_is_no_host_is_an_error(self):
        server = self.server()
        for word, said in (("drian", "did you mean drain?"), ("tpo", "did you mean top?"), ("relaod", "did you mean reload?"),
                           ("ends", "did you mean end?"), ("status", "the commands are top, topo, end, ")):
            beside_a_host = ([word, self.at(server)], [self.at(server), word]) if "did you mean" in said else ()
            for arguments in ([word], *beside_a_host):
                with self.subTest(arguments=arguments):
                    run = subprocess.run([os.path.join(BUILD, "bin/rcuda-smi"), *arguments], capture_output=True, text=True,
                                         timeout=60)
                    self.assertEqual((run.returncode, run.stdout), (2, ""))
                    self.assertIn(f'"{word}" is neither a command nor a host', run.stderr)
                    self.assertIn(said, run.stderr)
        self.smi("localhost", result=1)  # "localhost" is a host; nothing listens at its default port

    def test_the_pool_is_the_default(self):
        first, second = self.server(), self.server()
        pool = dict(os.environ, RCUDA_DEVICES=f"{first.address()},{second.address()}")
        for command in (["rcuda-smi"], ["rcuda-smi", "-L"], ["rcuda-smi", "top", "--rounds", "1", "--every", "0.1s"],
                        ["rcuda-smi", "topo", "--no-measure"], ["rcuda-smi", "reload"], ["rcuda-lease", "list"]):
            with self.subTest(command=command):
                if command[0] == "rcuda-lease":
                    for server in (first, second):
                        subprocess.run([os.path.join(BUILD, "bin/rcuda-lease"), "take", self.at(server), "--for", "1h"],
                                       check=True, stdout=subprocess.DEVNULL)
                run = subprocess.run([os.path.join(BUILD, "bin", command[0]), *command[1:]], capture_output=True, text=True,
                                     timeout=60, env=pool)
                self.assertEqual(run.returncode, 0, run.stderr)
                for server in (first, second):
                    self.assertRegex(run.stdout, f"127.0.0.1[:@]{server.port}")

    def test_the_serving_line_has_names_and_the_build(self):
        server = self.server()
        said, = re.findall(r"serving (.*)", server.text())
        self.assertRegex(said, r"^root \(uid 0\).* on 127\.0\.0\.1:\d+ and .*, by rcuda-server \d.* \(build [0-9a-f]{12}\)$")
        shown = subprocess.run([os.path.join(BUILD, "bin/rcuda-server"), "--version"], capture_output=True, text=True).stdout
        self.assertTrue(said.endswith(shown.strip()), (said, shown))
        self.assertRegex(server.text(), r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z rcuda-server\[\d+\] info: serving ")

    def test_all_programs_have_the_build_of_the_server(self):
        server = self.server()
        one, = json.loads(self.smi("--json", self.at(server)))
        tools = [name for name in os.listdir(os.path.join(BUILD, "bin")) if name.startswith("rcuda-")]
        self.assertLessEqual({"rcuda-server", "rcuda-smi", "rcuda-run"}, set(tools))
        for tool in tools:
            shown = subprocess.run([os.path.join(BUILD, "bin", tool), "--version"], capture_output=True, text=True).stdout
            self.assertEqual(shown, f"{tool} {one['version']} (build {one['build']})\n")

    def test_top_shows_rates(self):
        server = self.server()
        program = self.session(server)
        top = subprocess.Popen([os.path.join(BUILD, "bin/rcuda-smi"), "top", "--every", "0.5", "--rounds", "40",
                                self.at(server)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(top.stdout.close)
        self.addCleanup(top.wait)
        self.addCleanup(top.kill)
        seen = []
        for line in top.stdout:
            if str(program.pid) in line:
                columns = re.split("  +", line)
                self.assertEqual(columns[7], "4 MiB", "PEAK")
                seen.append(columns[10])  # TO GPU/s
                if seen[-1] != "0 B":
                    break
                program.stdin.write("\n")
                program.stdin.flush()
        self.assertRegex(seen[-1], r"^[\d.]+ [KM]iB$", seen)

    def test_topology_of_two_servers(self):
        first = self.server(SOFTGPU_DEVICES="2")
        second = self.server(SOFTGPU_NODE="1")
        text = self.smi("topo", self.at(first), self.at(second))
        rows = [line.split()[3:] for line in text.splitlines()[1:4]]
        # Both servers are on this machine, and a GPU in software has no adapter near it.
        self.assertEqual([row[2] for row in rows], ["HOST", "HOST", "X"], text)
        self.assertEqual([rows[0][0], rows[1][1], rows[2][0]], ["X", "X", "HOST"])
        self.assertIn(rows[0][1], ("NVL", "PIX", "PXB", "PHB", "NODE", "SYS"))
        self.assertEqual([row[3] for row in rows], ["-", "-", "-"])
        for word in (rows[0][1], "HOST", "NET", "NIC"):
            self.assertRegex(text, rf"(?m)^  {word} +[a-z]")  # the legend
        self.assertIn("(rcuda-p2p, pid", first.text())
        self.assertNotIn(" on )", first.text())  # the client's host
        matrix, measured = text.split("\nCopies between the first GPUs")
        measured = measured.splitlines()[1:]
        self.assertEqual(len(measured), 2)
        for line in measured:
            self.assertRegex(line, r": [\d.]+[um]s, [\d.]+ GB/s \([^,]+\)$")
        self.assertEqual(self.smi("topo", "-m", "--no-measure", self.at(first), self.at(second)), matrix)

    # ---- what they do ----

    def test_end_ends_that_session_only(self):
        server = self.server()
        ends, stays = self.session(server), self.session(server, "shm")
        self.smi("end", self.at(server), self.worker_of(server, ends))
        output, errors = ends.communicate("\n", timeout=60)
        self.assertIn("ended the session", errors, output)
        self.assertEqual(stays.communicate("\n", timeout=60)[0].split()[-1], "0")
        self.assertIn("no session of yours", self.smi("end", self.at(server), ends.pid, result=1))

    def test_a_draining_server_takes_no_sessions_and_stops_after_the_last(self):
        server = self.server()
        program = self.session(server)
        drain = subprocess.Popen([os.path.join(BUILD, "bin/rcuda-smi"), "drain", self.at(server)],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(drain.stdout.close)
        self.addCleanup(drain.wait)
        self.assertIn("draining, 1 session left", drain.stdout.readline())
        refused = subprocess.run([sys.executable, "-c", SESSION], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, env=client_environment(BUILD, [server], "tcp"))
        self.assertIn("rcuda-smi resume", refused.stderr)
        self.assertIn("draining, ", self.smi(self.at(server)))
        self.assertEqual(program.communicate("\n", timeout=60)[0].split(), ["copied", "0"])
        self.assertIn("stopped", drain.communicate(timeout=60)[0])
        self.assertEqual(server.process.wait(timeout=60), 0)
        self.assertIn("info: stopping, because the server was drained: ending 0 session(s)\n", server.text())

    def test_an_operator_can_resume_a_drain_that_an_operator_began(self):
        server = self.server()
        program = self.session(server)
        self.smi("drain", "--no-wait", self.at(server))
        self.smi("resume", self.at(server))
        self.session(server).kill()
        program.kill()
        program.wait()
        self.assertTrue(eventually(lambda: not server.sessions(BUILD)))
        self.session(server)

    def test_no_operator_resumes_a_server_that_a_signal_stops(self):
        for drained_before in (False, True):
            with self.subTest(drained_before=drained_before):
                audit = os.path.join(self.folder(), "audit")
                server = self.server(RCUDA_SERVER_DRAIN_TIMEOUT="10min", RCUDA_SERVER_AUDIT=audit)
                program = self.session(server)
                if drained_before:
                    self.smi("drain", "--no-wait", self.at(server))
                server.process.send_signal(signal.SIGTERM)
                self.assertTrue(eventually(lambda: "for at most 10m" in server.text()))
                self.assertIn("cannot be resumed", self.smi("resume", self.at(server), result=1))
                refused = subprocess.run([sys.executable, "-c", SESSION], stdin=subprocess.DEVNULL, capture_output=True,
                                         text=True, env=client_environment(BUILD, [server], "tcp"))
                self.assertIn("the server is draining", refused.stderr)
                self.assertNotIn("resume", refused.stderr)
                self.assertEqual([line["what"] for line in audit_lines(audit, "control")],
                                 ["drain"] * (1 + drained_before))
                self.assertIn("draining, ", self.smi(self.at(server)))
                program.communicate("\n", timeout=60)
                self.assertEqual(server.process.wait(timeout=60), 0)

    def test_a_signal_drains_for_a_time_and_a_second_one_stops(self):
        for ends_by in ("the program", "the time", "a second signal"):
            with self.subTest(ends_by):
                audit = os.path.join(self.folder(), "audit")
                server = self.server(RCUDA_SERVER_DRAIN_TIMEOUT="2s" if ends_by == "the time" else "10min",
                                     RCUDA_SERVER_AUDIT=audit)
                program = self.session(server)
                program.stdin.write("\n")
                program.stdin.flush()
                self.assertEqual(program.stdout.readline(), "copied\n")
                server.process.send_signal(signal.SIGTERM)
                self.assertTrue(eventually(lambda: "draining, " in self.smi(self.at(server))))
                if ends_by == "the program":
                    self.assertEqual(program.communicate("\n", timeout=60)[0].split(), ["copied", "0"])
                elif ends_by == "a second signal":
                    server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(timeout=60), 0)
                self.assertEqual([line["event"] for line in audit_lines(audit)], ["begin", "control", "session"])
                records = audit_lines(audit, "session")
                self.assertEqual(records[0]["end"], {
                    "the program": "ended by the client",
                    "the time": "the server was drained (SIGTERM), and its drain timeout is over",
                    "a second signal": "the server was stopped (SIGTERM)"}[ends_by])
                self.assertGreaterEqual(records[0]["bytes_to_device"], 1 << 20)

    # ---- systemd ----

    def test_the_unit_asks_for_the_state(self):
        with open(os.path.join(SOURCE, "debian/rcuda-server.service")) as file:
            unit = file.read().splitlines()
        for line in ("Type=notify", "WatchdogSec=3min", "ExecReload=/bin/kill -HUP $MAINPID", "RestartPreventExitStatus=2 78"):
            self.assertIn(line, unit)

    def test_the_service_manager_learns_the_state(self):
        path = os.path.join(self.folder(), "notify")
        said, stops = [], "STOPPING=1\nSTATUS=the server was stopped (SIGTERM)"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(60)

            def listen():  # from the beginning on, because the socket can hold only few messages
                with contextlib.suppress(OSError):
                    while stops not in said:
                        said.append(manager.recv(1 << 12).decode())
            listening = threading.Thread(target=listen)
            listening.start()
            self.addCleanup(listening.join)
            # The server must notify every tenth of a second, half of this time.
            server = self.server(NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")
            ready = f"READY=1\nSTATUS=serving on 127.0.0.1:{server.port}"
            self.assertTrue(eventually(lambda: ready in said and len(said) - said.index(ready) > 3), said)
            for worker in server.workers():
                with open(f"/proc/{worker}/environ") as environment:
                    self.assertNotRegex(environment.read(), "NOTIFY_SOCKET|WATCHDOG")
            self.smi("reload", self.at(server))
            server.process.send_signal(signal.SIGHUP)
            self.assertTrue(eventually(lambda: said.count("READY=1") == 2), said)
            self.assertEqual(server.stop(), 0)
            listening.join()
        self.assertIn("WATCHDOG=1", said)
        states = [text for text in said if text != "WATCHDOG=1"]
        self.assertEqual([text.split("\n")[0] for text in states], ["READY=1", *["RELOADING=1", "READY=1"] * 2, "STOPPING=1"])
        self.assertEqual((states[0], states[-1]), (ready, stops))
        for text in states[1:-1:2]:
            self.assertRegex(text, r"^RELOADING=1\nMONOTONIC_USEC=\d+$")

    def test_a_watchdog_for_another_process_gets_nothing(self):
        path = os.path.join(self.folder(), "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.setblocking(False)
            server = self.server(NOTIFY_SOCKET=path, WATCHDOG_USEC="200000", WATCHDOG_PID="1")
            self.assertEqual(server.stop(), 0)
            said = [manager.recv(1 << 12).decode().split("=")[0] for _ in range(2)]
            self.assertEqual(said, ["READY", "STOPPING"])

    # ---- what programs learn ----

    def test_the_end_of_a_session_names_its_cause(self):
        """For leases and limits: leases_test.py, quotas_test.py."""
        def send(number):
            return lambda server, program: server.process.send_signal(number)

        def end(server, program):
            self.smi("end", self.at(server), self.worker_of(server, program))

        def kill_worker(server, program):
            os.kill(self.worker_of(server, program), signal.SIGKILL)

        for causes, drain, line in (
                (send(signal.SIGTERM), "0s", "the server was stopped (SIGTERM)"),
                (send(signal.SIGINT), "0s", "the server was stopped (SIGINT)"),
                (send(signal.SIGTERM), "1s", "the server was drained (SIGTERM), and its drain timeout is over"),
                (send(signal.SIGKILL), "0s", "the server's daemon has ended: see the server's log"),
                (end, "0s", "ended the session"),
                (kill_worker, "0s", "the peer closed the connection")):
            for medium in ("shm", "tcp"):
                with self.subTest(line=line, medium=medium):
                    server = self.server(RCUDA_SERVER_DRAIN_TIMEOUT=drain)
                    program = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], stdout=subprocess.PIPE,
                                               stderr=subprocess.PIPE, text=True,
                                               env=client_environment(BUILD, [server], medium))
                    self.addCleanup(program.kill)
                    self.assertEqual(program.stdout.readline(), "running\n")
                    causes(server, program)
                    said = program.communicate(timeout=60)[1]
                    lost, = [each for each in said.splitlines() if " is lost: " in each]
                    self.assertIn(line, lost)

    def test_a_program_waits_for_a_server_that_restarts_or_drains(self):
        server = self.server()
        other = self.session(server)
        self.smi("drain", "--no-wait", self.at(server))
        program = subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   env=client_environment(BUILD, [server], "tcp", RCUDA_WAIT="10min"))
        self.addCleanup(program.kill)
        said = [program.stderr.readline()]
        other.communicate(timeout=60)
        self.assertEqual(server.process.wait(timeout=60), 0)
        said.append(program.stderr.readline())
        self.assertNotIn(" refused: ", server.text())  # once for each attempt
        self.server("--port", server.port)
        self.assertEqual(program.communicate("\n", timeout=60)[0].split(), ["ready", "copied", "0"])
        for line, cause in zip(said, ("the server is draining", "nothing listens there")):
            self.assertIn("waiting (RCUDA_WAIT): ", line)
            self.assertIn(cause, line)

    def test_uuids_are_found_when_the_server_is_back(self):
        server = self.server()
        uuid = json.loads(self.smi("--json", self.at(server)))[0]["devices"][0]["uuid"]
        server.stop()
        environment = dict(client_environment(BUILD, [server], "tcp", RCUDA_WAIT="10min"))
        by_name = dict(environment, RCUDA_DEVICES=f"127.0.0.1@{server.port}:{uuid}")
        by_variable = dict(environment, CUDA_VISIBLE_DEVICES=uuid)
        programs = []
        for variables in (by_name, by_variable):
            programs.append(subprocess.Popen([sys.executable, "-c", SESSION], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, text=True, env=variables))
            self.addCleanup(programs[-1].kill)
        nvml = subprocess.Popen([sys.executable, "-c", NVML_TWICE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.PIPE, env=dict(by_name, LD_PRELOAD="", LD_LIBRARY_PATH=os.path.join(BUILD, "lib/rcuda")))
        self.addCleanup(nvml.kill)
        self.assertEqual(nvml.stdout.readline(), "found nothing\n")
        for program in programs:
            self.assertIn("waiting (RCUDA_WAIT): ", program.stderr.readline())
        self.server("--port", server.port)
        for program in programs:
            self.assertEqual(program.communicate("\n", timeout=60)[0].split(), ["ready", "copied", "0"])
        self.assertEqual(nvml.communicate("\n", timeout=60)[0], "found 1\n")

    def test_a_program_does_not_wait_for_what_will_not_pass(self):
        server = self.server()
        run = subprocess.run([sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
                             capture_output=True, text=True, timeout=60,
                             env=dict(client_environment(BUILD, [server], "tcp", RCUDA_WAIT="10min"),
                                      RCUDA_DEVICES=server.address(7)))
        self.assertEqual(run.stdout, "100\n", run.stderr)
        self.assertIn("does not offer device 7", run.stderr)
        self.assertNotIn("waiting", run.stderr)


if __name__ == "__main__":
    run_tests(globals())
