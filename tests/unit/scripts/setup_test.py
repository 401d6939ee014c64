#!/usr/bin/env python3
"""scripts/setup: what it asks for, and what it prints if it cannot go on. Nothing is installed."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
NOBODY = 65534


class SetupTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.tree = pathlib.Path(temporary.name)
        self.tree.chmod(0o755)
        (self.tree / "scripts").mkdir()
        (self.tree / "bin").mkdir()
        shutil.copy(SCRIPTS / "setup", self.tree / "scripts")
        self.write("scripts/wheels", 'echo "wheels $*"')
        self.write("scripts/missing_packages", "")
        for tool in ("bash", "dirname", "env", "sed"):
            (self.tree / "bin" / tool).symlink_to(shutil.which(tool))

    def write(self, path, line):
        (self.tree / path).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (self.tree / path).chmod(0o755)

    def setup(self, *arguments, cuda_home="/nowhere"):
        """The output of scripts/setup for an ordinary user who has only the tools in bin."""
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        result = subprocess.run([self.tree / "scripts/setup", *arguments], capture_output=True, text=True, **user,
                                env={"PATH": str(self.tree / "bin"), "CUDA_HOME": str(cuda_home)})
        return result.returncode, result.stdout, result.stderr

    def test_nothing_is_missing(self):
        self.write("bin/nvcc", "")
        self.assertEqual(self.setup(), (0, "", ""))

    def test_packages_need_more(self):
        self.write("bin/nvcc", "")
        self.write("scripts/missing_packages", '[[ " $* " != *" packages "* ]] || echo debhelper')
        self.assertEqual(self.setup(), (0, "", ""))
        status, _, errors = self.setup("--packages")
        self.assertEqual(status, 1)
        self.assertIn("apt-get was not found", errors)

    def test_without_nvcc(self):
        self.assertEqual(self.setup(), (0, "wheels toolkit\n", ""))

    def test_nvcc_of_cuda_home(self):
        (self.tree / "toolkit/bin").mkdir(parents=True)
        self.write("toolkit/bin/nvcc", "")
        self.assertEqual(self.setup(cuda_home=self.tree / "toolkit"), (0, "", ""))

    def test_for_tests(self):
        self.assertEqual(self.setup("--tests"), (0, "wheels runtime-* python-* toolkit\n", ""))

    def test_packages_are_installed(self):
        self.write("scripts/missing_packages", "echo cmake; echo g++")
        self.write("bin/sudo", '"$@"')
        self.write("bin/apt-get", 'echo "$*" >&2')
        status, output, errors = self.setup()
        self.assertEqual((status, output), (0, "setup: installing cmake g++\nwheels toolkit\n"))
        self.assertEqual(errors, "update -qq\ninstall -y -qq --no-install-recommends cmake g++\n")

    def test_without_root(self):
        self.write("scripts/missing_packages", "echo cmake")
        self.write("bin/apt-get", "")
        self.assertEqual(self.setup(), (1, "", "setup: not root, and sudo was not found: "
                                               "as root, run apt-get install cmake\n"))

    def test_another_distribution(self):
        self.write("scripts/missing_packages", "echo cmake")
        status, _, errors = self.setup()
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"^setup: apt-get was not found: .*scripts/packages.txt.*\n$")

    def test_no_mirror(self):
        self.write("scripts/missing_packages", "echo cmake")
        self.write("bin/sudo", '"$@"')
        self.write("bin/apt-get", "exit 100")
        status, _, errors = self.setup()
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"^setup: apt-get could not install .*mirror.*\n$")

    def test_no_such_argument(self):
        status, _, errors = self.setup("--test")
        self.assertEqual(status, 2)
        self.assertIn("scripts/setup [--tests]", errors)


if __name__ == "__main__":
    unittest.main()
