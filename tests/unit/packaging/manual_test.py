#!/usr/bin/env python3
"""packaging/manual.py: every option of a tool is in its manual page and its completions.

    manual_test.py
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
MANUAL = SOURCE / "packaging/manual.py"
DATA = r"""
[variables.pool]
SOME_POOL = "where to ask"
[files.token]
"~/token" = "the token"
["some-tool"]
section = 8
uses = ["pool"]
exit = [["0", "done"], ["7", "not done"]]
environment = [["SOME_WAY", "the way"]]
files = [["/etc/some", "the file"]]
files_of = ["token"]
examples = """ + '"""' + r"""
some-tool take -x
some-tool""" + '"""' + r"""
see = ["other(1)", "more(5)"]
[settings]
page = "some.toml"
purpose = "settings of some-tool"
description = "A file."
tables = "[limits]   of what"
limits = [["memory", "how much"]]
files = [["/etc/some.toml", "the file"]]
examples = "port = 1"
see = ["some-tool(8)"]
"""
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
        # cat by its full path, because PATH has only the tool's folder.
        tool.write_text(TOOL.replace("cat <<", "/bin/cat <<"))
        tool.chmod(0o755)
        (self.folder / "data.toml").write_text(DATA)
        subprocess.run([sys.executable, MANUAL, tool, "--version", "1.2", "--settings", "--data",
                        self.folder / "data.toml", "--share", self.folder], check=True)

    def read(self, path):
        return (self.folder / path).read_text()

    def complete(self, *words):
        script = (f"source {self.folder}/bash-completion/completions/some-tool; COMP_WORDS=(some-tool {' '.join(words)}); "
                  f"_some_tool some-tool '{words[-1]}' '{words[-2] if len(words) > 1 else ''}'; echo ${{COMPREPLY[@]}}")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()

    def test_the_page(self):
        page = self.read("man/man8/some-tool.8")
        self.assertEqual(re.findall(r"(?m)^\.SH (.*)$", page),
                         ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "EXIT STATUS", "ENVIRONMENT",
                          "FILES", "EXAMPLES", "SEE ALSO"])
        for line in ('.TH SOME-TOOL 8 "" "rcuda 1.2" "System Administration"', "some-tool \\- does things",
                     "some\\-tool [OPTIONS] \\-\\- WHAT", "some\\-tool take [OPTIONS] name", ".B \\-w,\\-\\-way TEXT",
                     "which way; C:\\enew and how far", ".B \\-\\-every FLOAT=2", ".SS take\ntake a thing: anybody may, and so on.", ".B name TEXT REQUIRED", ".B \\-\\-all",
                     "\\&.A footer with an example:", "    some\\-tool take it", ".B RCUDA_SERVER_PORT",
                     "the port (TCP) (a number; default: 8308)", ".B 7\nnot done", ".B SOME_WAY\nthe way",
                     ".B SOME_POOL\nwhere to ask", ".B /etc/some\nthe file", ".B ~/token\nthe token",
                     "some\\-tool take \\-x", ".BR other (1) ,\n.BR more (5)"):
            self.assertIn(line + "\n", page)

    def test_the_page_of_the_configuration_file(self):
        page = self.read("man/man5/some.toml.5")
        for line in ('.TH SOME.TOML 5 "" "rcuda 1.2" "File Formats"', "some.toml \\- settings of some\\-tool",
                     ".B port\nthe port (TCP) (a number; default: 8308)", "[limits]   of what", ".B memory\nhow much",
                     ".B /etc/some.toml\nthe file", "port = 1", ".BR some\\-tool (8)"):
            self.assertIn(line + "\n", page)

    def test_man_has_no_complaints(self):
        for page in ("man/man8/some-tool.8", "man/man5/some.toml.5"):
            shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", self.folder / page], capture_output=True,
                                   text=True, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"})
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("SEE ALSO", shown.stdout)

    def test_every_limit_has_a_line(self):
        with open(SOURCE / "packaging/manuals.toml", "rb") as file:
            told = {name for name, _ in tomllib.load(file)["settings"]["limits"]}
        known = re.findall(r'\{Key::k\w+, "(\w+)"', (SOURCE / "server/quota/rules.cpp").read_text())
        self.assertEqual(told, set(known))

    def test_zsh_and_fish(self):
        zsh = self.read("zsh/vendor-completions/_some-tool")
        self.assertTrue(zsh.startswith("#compdef some-tool\n"))
        for text in ("'-w:which way; C:\\new and how far'", "-w|--way) compadd -- slow fast; return ;;",
                     "commands=('take:take a thing: anybody may, and so on')",
                     "  take) options=('--all:everything'); commands=() ;;"):
            self.assertIn(text, zsh)
        fish = self.read("fish/vendor_completions.d/some-tool.fish").splitlines()
        for line in ("complete -c some-tool -n __fish_use_subcommand -s w -l way -x -a 'slow fast' "
                     "-d 'which way; C:\\new and how far'",
                     "complete -c some-tool -n __fish_use_subcommand -l every -r -d 'seconds'",
                     "complete -c some-tool -n __fish_use_subcommand -a take -d 'take a thing: anybody may, and so on'",
                     "complete -c some-tool -n '__fish_seen_subcommand_from take' -l all -d 'everything'"):
            self.assertIn(line, fish)

    def test_the_completion(self):
        self.assertEqual(self.complete("-"), ["-h", "--help", "-w", "--way", "--every"])
        self.assertEqual(self.complete("t"), ["take"])
        self.assertEqual(self.complete("take", "--"), ["--all"])
        self.assertEqual(self.complete("--way", "f"), ["fast"])
        self.assertEqual(self.complete("./file"), [])  # then bash completes files


if __name__ == "__main__":
    unittest.main()
