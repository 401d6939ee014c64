#!/usr/bin/env python3
"""RCUDA_TRACE: the contents of a real program's timeline, over each medium, with one server and
with two.

    trace_test.py --build FOLDER --programs FOLDER [unittest arguments]
"""

import glob
import json
import os
import signal
import subprocess
import tempfile
import unittest
from collections import defaultdict

from servers import client_environment, eventually, load_trace, run_tests, Server

BUILD = PROGRAMS = None
FIRST_SERVER = 5_000_000  # the first number that trace.cpp gives to a server


class Timeline:
    def __init__(self, events):
        self.events = events
        self.slices = [e for e in events if e["ph"] == "X"]
        self.by_category = defaultdict(list)
        for event in self.slices:
            self.by_category[event["cat"]].append(event)

    def named(self, category, name):
        return [e for e in self.by_category[category] if e["name"] == name]

    def clock_uncertainty_us(self, server):
        labels = [e for e in self.events
                  if e["name"] == "process_labels" and e["pid"] == FIRST_SERVER + server]
        return labels[0]["args"].get("clock_uncertainty_us", 0.0)


def end_of(event):
    return event["ts"] + event["dur"]


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "trace.json")
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            self.assertEqual(server.stop(), 0, server.text())
        self.folder.cleanup()

    def start(self, count=1):
        self.servers = [Server(BUILD, index=i) for i in range(count)]

    def run_program(self, name, transport, **more):
        environment = client_environment(BUILD, self.servers, transport, RCUDA_TRACE=self.file, **more)
        result = subprocess.run([os.path.join(PROGRAMS, name)], env=environment, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return Timeline(load_trace(self.file))

    def text(self):
        with open(self.file) as file:
            return file.read()

    def check_nesting(self, timeline):
        """On each track, slices are nested or disjoint; the format cannot represent others.

        Compares whole nanoseconds: a sum of microseconds as floating point numbers is not exact.
        """
        def nanoseconds(event):
            begin = round(event["ts"] * 1000)
            return begin, begin + round(event["dur"] * 1000)

        tracks = defaultdict(list)
        for event in timeline.slices:
            self.assertGreaterEqual(event["dur"], 0)
            tracks[event["pid"], event["tid"]].append(event)
        for track, events in tracks.items():
            open_ends = []
            for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
                begin, end = nanoseconds(event)
                while open_ends and open_ends[-1] <= begin:
                    open_ends.pop()
                if open_ends:
                    self.assertLessEqual(end, open_ends[-1], (track, event))
                open_ends.append(end)

    def check_pairs(self, timeline, servers):
        """Every command that was sent was executed, in order, and not before it was sent."""
        for server in range(servers):
            sent = {e["args"]["command"]: e
                    for category in ("post", "call") for e in timeline.by_category[category]
                    if e["args"]["server"] == server}
            done = {e["args"]["command"]: e for e in timeline.by_category["executor"]
                    if e["pid"] == FIRST_SERVER + server}
            self.assertEqual(sorted(sent), list(range(1, len(sent) + 1)))
            self.assertEqual(set(sent), set(done))
            slack = timeline.clock_uncertainty_us(server) + 0.002
            for number, command in sent.items():
                execution = done[number]
                self.assertEqual(command["name"].split()[1], execution["name"])
                self.assertGreaterEqual(execution["ts"] + slack, command["ts"], (command, execution))
            arrows = [e["id"] for e in timeline.events if e["ph"] == "f"]
            self.assertEqual(len(arrows), len(set(arrows)))
            self.assertEqual(set(arrows), {e["id"] for e in timeline.events if e["ph"] == "s"})

    def check_launches(self, timeline):
        launches = timeline.named("api", "cuLaunchKernel")
        self.assertTrue(launches)
        posts = timeline.named("post", "post Launch")
        self.assertEqual(len(posts), len(launches))
        executed = timeline.named("executor", "Launch")
        self.assertEqual(len(executed), len(launches))
        # The GPU's slice, if it was timed, begins after the launch was queued.
        queued = {(e["pid"], e["args"]["command"]): e for e in executed}
        ran = timeline.named("device", "Launch")
        self.assertLessEqual(len(ran), len(launches))
        for event in ran:
            self.assertGreaterEqual(end_of(event), queued[event["pid"], event["args"]["command"]]["ts"])

    def check_program(self, transport, servers):
        self.start(servers)
        timeline = self.run_program("several_devices" if servers > 1 else "vector_add", transport)
        self.check_nesting(timeline)
        self.check_pairs(timeline, servers)
        self.check_launches(timeline)

    def test_shared_memory(self):
        self.check_program("shm", 1)

    def test_tcp(self):
        self.check_program("tcp", 1)

    def test_two_servers(self):
        self.check_program("shm", 2)

    def test_two_servers_over_tcp(self):
        self.check_program("tcp", 2)

    def test_threads_have_tracks_of_their_own(self):
        self.start()
        timeline = self.run_program("host_threads", "shm")
        self.check_nesting(timeline)
        self.check_pairs(timeline, 1)
        self.assertGreaterEqual(len({e["tid"] for e in timeline.named("api", "cuLaunchKernel")}), 6)
        # Of this many launches, some are timed even on a busy machine.
        self.assertTrue(timeline.named("device", "Launch"))

    def test_copies_of_several_pieces(self):
        # Over sockets, the calls of the pieces overlap in time.
        self.start()
        timeline = self.run_program("copies", "tcp")
        self.check_nesting(timeline)
        self.check_pairs(timeline, 1)

    def test_symbols_called_directly_are_calls_too(self):
        # driver_api calls the functions by their symbols, not the pointers that cuGetProcAddress returns.
        self.start()
        timeline = self.run_program("driver_api", "shm")
        self.assertTrue(timeline.named("api", "cuModuleLoadData")
                        or timeline.named("api", "cuModuleLoad"))

    def test_processes_do_not_share_a_file(self):
        self.start()
        program = os.path.join(PROGRAMS, "vector_add")
        environment = client_environment(BUILD, self.servers, "shm",
                                         RCUDA_TRACE=os.path.join(self.folder.name, "t.%p.json"))
        runs = [subprocess.Popen([program], env=environment, stdout=subprocess.DEVNULL)
                for _ in range(3)]
        self.assertEqual([run.wait() for run in runs], [0, 0, 0])
        for run in runs:
            events = load_trace(os.path.join(self.folder.name, f"t.{run.pid}.json"))
            self.assertEqual({e["pid"] for e in events if e["pid"] < FIRST_SERVER}, {run.pid})

    def test_a_file_that_is_being_written_is_left_alone(self):
        self.start()
        environment = client_environment(BUILD, self.servers, "shm", RCUDA_TRACE=self.file)
        program = [os.path.join(PROGRAMS, "host_threads")]
        runs = [subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL)
                for _ in range(2)]
        self.assertEqual([run.wait() for run in runs], [0, 0])
        files = glob.glob(os.path.join(self.folder.name, "trace*.json"))
        owners = set()
        for file in files:
            owners |= {e["pid"] for e in load_trace(file) if e["pid"] < FIRST_SERVER}
        # If the second program began after the first had ended, it replaced the file.
        self.assertEqual(owners & {run.pid for run in runs}, owners)
        self.assertEqual(len(owners), len(files))

    def test_a_lost_worker_leaves_a_whole_file(self):
        self.start()
        environment = client_environment(BUILD, self.servers, "tcp", RCUDA_TRACE=self.file)
        run = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        run.stdout.readline()
        os.kill(self.servers[0].sessions(BUILD)[run.pid], signal.SIGKILL)
        run.communicate()
        self.assertEqual(run.returncode, 3)
        timeline = Timeline(load_trace(self.file))
        self.check_nesting(timeline)
        self.assertTrue(timeline.named("executor", "Launch"))

    def test_a_killed_client_leaves_a_file_that_can_be_read(self):
        self.start()
        environment = client_environment(BUILD, self.servers, "shm", RCUDA_TRACE=self.file)
        run = subprocess.Popen([os.path.join(BUILD, "tests/e2e/endless")], env=environment,
                               stdout=subprocess.PIPE)
        run.stdout.readline()
        self.assertTrue(eventually(lambda: "post Launch" in self.text()))
        run.kill()
        run.communicate()
        # Perfetto accepts an array that is not closed; its last line may be truncated.
        lines = [line.rstrip(",") for line in self.text().split("\n")[1:]]
        events = [json.loads(line) for line in lines[:-1]]
        self.assertTrue(any(e["name"] == "post Launch" for e in events))

    def test_a_file_that_cannot_be_written_is_said_so(self):
        self.start()
        environment = client_environment(BUILD, self.servers, "shm", RCUDA_TRACE="/nowhere/t.json")
        result = subprocess.run([os.path.join(PROGRAMS, "vector_add")], env=environment,
                                capture_output=True, text=True)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("RCUDA_TRACE: cannot write to /nowhere/t.json", result.stderr)


if __name__ == "__main__":
    run_tests(globals(), "programs")
