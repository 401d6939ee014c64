#!/usr/bin/env python3
"""packaging/manual.py: every option of a tool is in its manual page and its completion.

    manual_test.py
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

MANUAL = pathlib.Path(__file__).resolve().parents[3] / "packaging/manual.py"
TOOL = r"""#!/bin/sh
case "$*" in
  --help) cat <<END
Does things: some-tool [OPTIONS] -- WHAT
Usage: some-tool [OPTIONS] [SUBCOMMAND]

Options:
  -h,--help                   Print this
  -w,--way TEXT:{slow,fast}
                              which way; C:\\new
                              and how far
  --every FLOAT:FLOAT in [0.1 - 3600]=2
                              seconds

Subcommands:
  take                        take a thing

.A footer with an example:
    some-tool take it
END
  ;;
  "take --help") cat <<END
take a thing: anybody may, and so on
Usage: some-tool take [OPTIONS] name

Positionals:
  name TEXT REQUIRED          its name

Options:
  --all                       everything
END
  ;;
  "--config /dev/null --list-settings") cat <<END
RCUDA_SERVER_PORT=8308  (default; a number)
    the port (TCP)
END
  ;;
  *) exit 1 ;;
esac
"""


class ManualTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        tool = self.folder / "some-tool"
        # The tool runs with nothing but itself in PATH.
        tool.write_text(TOOL.replace("cat <<", "/bin/cat <<"))
        tool.chmod(0o755)
        subprocess.run([sys.executable, MANUAL, tool, "--version", "1.2", "--settings", "--man", self.folder / "man/page",
                        "--completion", self.folder / "bash/words"], check=True)

    def complete(self, *words):
        script = (f"source {self.folder}/bash/words; COMP_WORDS=(some-tool {' '.join(words)}); "
                  f"_some_tool some-tool '{words[-1]}' '{words[-2] if len(words) > 1 else ''}'; echo ${{COMPREPLY[@]}}")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

    def test_the_page(self):
        page = (self.folder / "man/page").read_text()
        for line in ('.TH SOME-TOOL 1 "" "rcuda 1.2" "User Commands"', "some-tool \\- does things",
                     "some\\-tool [OPTIONS] \\-\\- WHAT", "some\\-tool take [OPTIONS] name", ".B \\-w,\\-\\-way TEXT",
                     "which way; C:\\enew and how far", ".B \\-\\-every FLOAT=2", ".SS take\ntake a thing: anybody may, and so on.", ".B name TEXT REQUIRED", ".B \\-\\-all",
                     "\\&.A footer with an example:", "    some\\-tool take it", ".B RCUDA_SERVER_PORT",
                     "the port (TCP) (a number; default: 8308)"):
            self.assertIn(line + "\n", page)

    def test_the_completion(self):
        self.assertEqual(self.complete("-"), ["-h", "--help", "-w", "--way", "--every"])
        self.assertEqual(self.complete("t"), ["take"])
        self.assertEqual(self.complete("take", "--"), ["--all"])
        self.assertEqual(self.complete("--way", "f"), ["fast"])
        self.assertEqual(self.complete("./file"), [])  # then bash completes files


if __name__ == "__main__":
    unittest.main()
