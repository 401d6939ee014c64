#!/usr/bin/env python3
"""tests/check_layers.py: which includes it allows, and what it prints for the others."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "check_layers.py"


class CheckLayersTest(unittest.TestCase):
    def check(self, files):
        """The exit status and the output for a tree of {path: what it includes}."""
        with tempfile.TemporaryDirectory() as root:
            for path, included in files.items():
                file = pathlib.Path(root, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("// A comment.\n" + "".join(f'#include "{name}"\n' for name in included))
            done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr

    def test_what_lies_below_may_be_included(self):
        self.assertEqual(self.check({
            "common/base/log.h": [],
            "server/executor/streams/jobs.h": ["common/base/log.h"],
            "server/executor/streams/jobs.cpp": ["server/executor/streams/jobs.h", "common/base/log.h"],
            "server/worker/loop.h": ["server/executor/streams/jobs.h"],
            "server/daemon/main.cpp": ["server/worker/loop.h"],
        }), (0, ""))

    def test_an_upward_include_is_named_with_file_and_line(self):
        status, output = self.check({
            "server/executor/streams/jobs.h": ["common/base/log.h", "server/worker/loop.h"],
            "server/worker/loop.h": [],
        })
        self.assertEqual(status, 1)
        self.assertEqual(output, "server/executor/streams/jobs.h:3: server/executor/streams may not include server/worker/loop.h\n")

    def test_client_and_server_do_not_know_each_other(self):
        status, output = self.check({"client/entry/copy.cpp": ["server/executor/streams/jobs.h"]})
        self.assertEqual(status, 1)
        self.assertIn("client/entry/copy.cpp:2: client/entry may not include", output)

    def test_a_circle_through_sources_is_found(self):
        status, output = self.check({
            "server/executor/a.h": [],
            "server/executor/a.cpp": ["server/executor/a.h", "server/executor/b.h"],
            "server/executor/b.h": ["server/executor/a.h"],
        })
        self.assertEqual(status, 1)
        self.assertIn("server/executor/a.cpp:3: a circle of includes:", output)
        self.assertIn("server/executor/b.h:2: server/executor/a", output)

    def test_what_may_be_in_a_set_uid_program_reads_no_variables_of_its_user(self):
        with tempfile.TemporaryDirectory() as root:
            for folder in ("client/entry", "server/daemon"):
                file = pathlib.Path(root, folder, "a.cpp")
                file.parent.mkdir(parents=True)
                file.write_text('// A comment.\nsecure_getenv("A");\nstd::getenv("B");\n')
            done = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout),
                         (1, "client/entry/a.cpp:3: a set-uid program may run this: use secure_getenv()\n"))

    def test_a_tree_without_sources_is_an_error(self):
        self.assertEqual(self.check({"README.h": []})[0], 1)


if __name__ == "__main__":
    unittest.main()
