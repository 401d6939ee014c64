#!/usr/bin/env python3
"""The wheel for AArch64: programs and Python of that architecture run by qemu-user and use a server with softgpu on
this machine.

    aarch64_test.py --build FOLDER [unittest arguments]

Downloads a compiler, qemu and the Python of an AArch64 Debian. Takes some minutes. If that is not possible here, exits
with 77 and says why.
"""

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SOURCE, "tests/e2e"))
from servers import run_tests, Server  # noqa: E402
from wheel_test import USE  # noqa: E402

BUILD = None
WHEEL = os.path.join(SOURCE, "build/wheel/aarch64")
# The programs of tests/programs that need only the driver API and contain their kernels as PTX.
PROGRAMS = ("absent_features", "context_lives", "driver_error_names", "driver_objects", "frees", "green_contexts", "linking",
            "null_pointers", "optional_pointers", "primary_context", "shaped_launches", "sparse_arrays",
            "texture_references")


def skip(reason):
    print(f"wheel.aarch64: SKIPPED: {reason}")
    sys.exit(77)


def unpack(folder, option, architecture, section):
    """Unpacks the packages of a section of packages.txt into the folder."""
    if os.path.exists(folder):
        return
    with open(os.path.join(SOURCE, "scripts/packages.txt")) as file:
        packages = re.search(rf"(?m)^\[{section}\]\n((?:.+\n)*)", file.read())[1].split()
    unpacked = subprocess.run([os.path.join(SOURCE, "scripts/unpack_packages"), option, architecture, folder + ".new",
                               *packages], capture_output=True, text=True)
    if unpacked.returncode != 0:
        print(unpacked.stderr)
        skip(f"could not fetch {' '.join(packages)}")
    os.rename(folder + ".new", folder)


class Aarch64Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = temporary.name
        subprocess.run([os.path.join(SOURCE, "scripts/make_wheel"), "--architecture", "aarch64", "--output",
                        cls.folder], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = glob.glob(cls.folder + "/*.whl")
        # From backports, because qemu before 8 uses gigabytes of memory for the reservation of device addresses.
        unpack(WHEEL + "/qemu", "--backports", {"x86_64": "amd64"}.get(platform.machine(), "arm64"), "emulator")
        unpack(WHEEL + "/debian", "--dependencies", "arm64", "aarch64")
        cls.emulate = cls.script("emulate", f'exec {WHEEL}/qemu/usr/bin/qemu-aarch64 -L {WHEEL}/debian "$@"')
        cls.make_venv(wheel)

    @classmethod
    def script(cls, name, text):
        path = os.path.join(cls.folder, name)
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text + "\n")
        os.chmod(path, 0o755)
        return path

    @classmethod
    def make_venv(cls, wheel):
        """Makes what python -m venv makes, except that bin/python is a script that starts qemu: the kernel cannot run that
        Python itself."""
        venv = os.path.join(cls.folder, "venv")
        (interpreter,) = glob.glob(WHEEL + "/debian/usr/bin/python3.[0-9]*")
        packages = os.path.join(venv, "lib", os.path.basename(interpreter), "site-packages")
        os.makedirs(packages)
        os.mkdir(venv + "/bin")
        with open(venv + "/pyvenv.cfg", "w") as file:
            file.write(f"home = {WHEEL}/debian/usr/bin\n")
        cls.python = cls.script("venv/bin/python", f'exec {cls.emulate} -0 "$0" {interpreter} "$@"')
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                        "--disable-pip-version-check", "--root-user-action=ignore", "--only-binary=:all:",
                        "--platform=manylinux_2_17_aarch64", "--target", packages, wheel], check=True)
        cls.package = os.path.join(packages, "rcuda")

    def setUp(self):
        self.servers = [Server(BUILD, index=index) for index in range(2)]

        def stop():
            for server in self.servers:
                self.assertEqual(server.stop(), 0, server.text())
        self.addCleanup(stop)
        self.pool = ",".join(server.address() for server in self.servers)

    def run_program(self, *command, **variables):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("RCUDA_", "LD_", "PYTHON"))}
        environment.update(variables)
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=self.folder)

    def check(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        return result.stdout

    def test_every_command_is_the_servers(self):
        """The generator gets the same commands from the headers with either compiler as preprocessor."""
        hashes = "generated/api/command_hashes.cpp"
        with open(os.path.join(WHEEL, "build", hashes)) as ours, open(os.path.join(BUILD, hashes)) as theirs:
            self.assertEqual(ours.read(), theirs.read())

    def test_the_architecture(self):
        self.assertEqual(self.check(self.run_program(self.python, "-c", "import platform; print(platform.machine())")),
                         "aarch64\n")

    def test_connect(self):
        text = USE + f"import rcuda\nprint(len(rcuda.connect('{self.pool}')))\nuse()\n"
        self.assertEqual(self.check(self.run_program(self.python, "-c", text)), "2\n2 devices\n")

    def test_rcuda_run(self):
        for transport in ("shm", "tcp"):
            result = self.run_program(self.emulate, self.package + "/bin/rcuda-run", "--devices", self.pool,
                                      "--transport", transport, "--", self.emulate, self.package + "/lib/rcuda/demo")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("1728 points on 2 devices, 0 wrong\n", result.stdout)
        self.assertIn("over tcp", self.servers[0].text())

    def test_programs(self):
        """The programs print what they print on a GPU. They use TCP, as from another machine: with shared memory, the
        client moves registered memory by a form of mremap() that qemu does not support."""
        for name in PROGRAMS:
            with self.subTest(name):
                program = os.path.join(self.folder, name)
                subprocess.run([WHEEL + "/bin/c++", "-std=c++20", "-O1", "-w", "-isystem", self.cuda_headers(),
                                "-o", program, os.path.join(SOURCE, "tests/programs", name + ".cpp"),
                                WHEEL + "/build/stubs/libcuda.so"], check=True)
                result = self.run_program(self.emulate, program, RCUDA_DEVICES=self.servers[0].address(),
                                          RCUDA_TRANSPORT="tcp", LD_LIBRARY_PATH=self.package + "/lib/rcuda")
                with open(os.path.join(SOURCE, "tests/programs/expected", name + ".txt")) as expected:
                    self.assertEqual(result.stdout, expected.read(), result.stderr)
                self.assertEqual(result.returncode, 0)

    def cuda_headers(self):
        with open(os.path.join(BUILD, "CMakeCache.txt")) as cache:
            (line,) = [line for line in cache if line.startswith("RCUDA_CUDA_INCLUDE_DIR:")]
        return line.partition("=")[2].strip()


if __name__ == "__main__":
    if not shutil.which("apt-get"):
        skip("qemu and the libraries are Debian's, and there is no apt-get")
    run_tests(globals())
