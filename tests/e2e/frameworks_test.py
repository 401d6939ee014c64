#!/usr/bin/env python3
"""The harness of tests/gpu/frameworks distinguishes crashes, hangs and differences, and reports nothing
else. Also runs the harness's programs that need no framework, remotely on softgpu.

    frameworks_test.py --build FOLDER [unittest arguments]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

GPU_TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../gpu")
sys.path.insert(0, os.path.join(GPU_TESTS, "frameworks"))

from harness import places, results  # noqa: E402
from harness.catalogue import PROGRAMS, Program  # noqa: E402
from harness.runner import Runner, Task  # noqa: E402

BUILD = None

PROGRAM = textwrap.dedent("""
    import os, signal, sys, time
    sys.path.insert(0, {folder!r})
    import lines
    REMOTE = os.environ["FRAMEWORKS_MODE"] == "shm"

    @lines.case
    def equal(say):
        say("value", 42)

    @lines.case
    def raises_alike(say):
        raise ValueError(f"{{os.getpid()}}")

    @lines.case
    def differs(say):
        say("first", 1)
        say("second", 2 if REMOTE else 3)

    @lines.case
    def varies(say):
        say("value", os.urandom(8).hex())

    @lines.case
    def crashes(say):
        say("value", 1)
        if REMOTE:
            os.kill(os.getpid(), signal.SIGSEGV)

    @lines.case
    def hangs(say):
        while REMOTE:
            time.sleep(1)

    @lines.case
    def last(say):
        say("value", "reached")

    if __name__ == "__main__":
        lines.run()
""")


class Harness(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = self.folder.name
        for name in ("lines", "logs", "work"):
            os.mkdir(os.path.join(self.out, name))
        self.program = Program("test", "test_programs", seconds=5)
        self.program.path = os.path.join(self.out, "test_programs.py")
        with open(self.program.path, "w") as file:
            file.write(PROGRAM.format(folder=os.path.join(GPU_TESTS, "frameworks")))
        self.options = argparse.Namespace(jobs=3, samples=1)
        self.known = results.KnownDifferences(
            os.path.join(GPU_TESTS, "frameworks/known_differences.txt"))

    def tearDown(self):
        self.folder.cleanup()

    def run_in(self, *modes, deadline=None):
        def place(task, arguments):
            return [sys.executable, *arguments], dict(os.environ, FRAMEWORKS_MODE=task.mode)

        tasks = [Task(self.program, mode) for mode in modes]
        Runner(self.out, self.options, place, deadline or time.monotonic() + 300).run(tasks)
        return tasks, [results.read_lines(task.lines_path(self.out)) for task in tasks]

    def test_verdicts(self):
        tasks, (native, again, remote) = self.run_in("native", "native-again1", "shm")
        self.assertEqual({task.state for task in tasks}, {"finished"})
        verdicts = {name: results.judge(f"test/{name}", "shm", native.cases[name], [again.cases[name]],
                                        remote.cases.get(name), self.known) for name in native.cases}
        told = {name: verdict.text for name, verdict in verdicts.items()}
        self.assertEqual(told, {
            "equal": "same", "raises-alike": "same", "differs": "second: 2, natively 3",
            "varies": "varies natively", "crashes": "crashed: SIGSEGV", "hangs": "hung", "last": "same"})
        self.assertEqual(list(native.cases), self.program.cases())
        self.assertEqual(remote.cases["last"].lines, {"value": "reached"})
        self.assertEqual(results.state_of(native.cases["raises-alike"]), "error: ValueError")

    def test_known_difference(self):
        path = os.path.join(self.out, "known.txt")
        with open(path, "w") as file:
            file.write("test/differs/second | shm | a reason | a plan\n")
        known = results.KnownDifferences(path)
        one, other = results.Result(), results.Result()
        one.ended = other.ended = True
        one.lines, other.lines = {"first": "1", "second": "2"}, {"first": "1", "second": "3"}
        self.assertEqual(results.judge("test/differs", "shm", one, [], other, known).kind, "known")
        self.assertEqual(results.judge("test/differs", "tcp", one, [], other, known).kind, "differs")
        other.lines["first"] = "0"
        self.assertEqual(results.judge("test/differs", "shm", one, [], other, known).text,
                         "first: 0, natively 1")

    def test_spent_budget(self):
        tasks, (outcome,) = self.run_in("shm", deadline=time.monotonic())
        self.assertEqual((tasks[0].state, outcome.cases), ("not run", {}))
        missing = results.judge("test/equal", "shm", None, [], None, self.known)
        self.assertEqual(missing.kind, "not run")

    def test_proof(self):
        own = "/build/lib/librcuda.so"
        self.assertEqual(places.proof("shm", {"driver": [own], "devices": ["none"]}, "/build"), "")
        self.assertEqual(places.proof("native", {"driver": ["/usr/lib/libcuda.so.1"]}, "/build"), "")
        for mode, driver, devices in (("native", own, "none"), ("shm", "none", "none"),
                                      ("shm", f"/usr/lib/libcuda.so.580 {own}", "none"),
                                      ("tcp", own, "/dev/nvidia0")):
            told = places.proof(mode, {"driver": [driver], "devices": [devices]}, "/build")
            self.assertNotEqual(told, "", (mode, driver, devices))

    def test_every_program_has_cases(self):
        for program in PROGRAMS:
            self.assertTrue(program.shards or program.cases(), program.name)


class OnSoftgpu(unittest.TestCase):
    def run_driver_calls(self, out, *options):
        return subprocess.run(
            [sys.executable, os.path.join(GPU_TESTS, "frameworks.py"), BUILD, "--driver", "softgpu", "--only",
             "driver_calls", "--out", out, "--jobs", "2", *options], capture_output=True, text=True)

    def test_driver_calls(self):
        namespace = subprocess.run([sys.executable, places.HIDE, "--", "true"], capture_output=True)
        options = [] if namespace.returncode == 0 else ["--without-namespace"]
        with tempfile.TemporaryDirectory() as out:
            page = os.path.join(out, "page.md")
            told = self.run_driver_calls(out, "--markdown", page, *options)
            self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
            self.assertIn("driver: calls/fork-before-init", told.stdout)
            with open(page) as file:
                self.assertIn("| driver | calls/memory | ok | same | same |", file.read())

    def test_nothing_of_the_driver_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.path.join(BUILD, "softgpu/lib/libcuda.so.1"), os.path.join(folder, "libcuda.so.1"))
            look = ("import ctypes, os\n"
                    "assert not [n for n in os.listdir('/dev') if n.startswith('nvidia')]\n"
                    "open('/dev/null', 'w').write('x')\n"
                    "ctypes.CDLL('libcuda.so.1')")
            found = {}
            for where, command in (("here", []), ("hidden", [sys.executable, places.HIDE, "--"])):
                found[where] = subprocess.run([*command, sys.executable, "-c", look], capture_output=True,
                                              text=True, env=dict(os.environ, LD_LIBRARY_PATH=folder))
            if found["hidden"].returncode == 78:
                self.skipTest("no mount namespaces here: " + found["hidden"].stderr.strip())
            self.assertNotEqual(found["hidden"].returncode, 0)
            self.assertIn("libcuda.so.1: file too short", found["hidden"].stderr)
            self.assertNotIn("file too short", found["here"].stderr)

    def test_the_nvml_of_the_machine_is_hidden_and_rcudas_is_not(self):
        own = os.path.join(BUILD, "lib/rcuda")
        with tempfile.TemporaryDirectory() as other:
            shutil.copy(os.path.join(own, "libnvidia-ml.so.1"), other)
            sizes = ("import os, sys\n"
                     "print([os.path.getsize(os.path.join(f, 'libnvidia-ml.so.1')) > 0 for f in sys.argv[1:]])")
            found = subprocess.run(
                [sys.executable, places.HIDE, "--", sys.executable, "-c", sizes, own, other],
                capture_output=True, text=True, env=dict(os.environ, LD_LIBRARY_PATH=f"{own}:{other}"))
            if found.returncode == 78:
                self.skipTest("no mount namespaces here: " + found.stderr.strip())
            self.assertEqual(found.stdout, "[True, False]\n", found.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", help="not used: rcuda-run preloads")
    arguments, rest = parser.parse_known_args()
    BUILD = os.path.abspath(arguments.build)
    unittest.main(argv=[sys.argv[0], *rest])
