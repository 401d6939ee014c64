#!/usr/bin/env python3
"""scripts/wheels with wheels that are made here: nothing is downloaded."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"


def make_wheel(folder, name, version, files):
    """A wheel of these files; returns its line in wheels.toml."""
    info = f"{name}-{version}.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            entry = zipfile.ZipInfo(file)
            entry.external_attr = (0o100755 if "/bin/" in file else 0o100644) << 16
            wheel.writestr(entry, text)
    return f'"{name}=={version}" = ["{hashlib.sha256(path.read_bytes()).hexdigest()}"]\n'


class WheelsTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.tree = pathlib.Path(self.temporary.name)
        self.index = self.tree / "index"
        self.index.mkdir()
        (self.tree / "scripts").mkdir()
        shutil.copy(SCRIPTS / "wheels", self.tree / "scripts")
        compiler = make_wheel(self.index, "compiler", "1.0",
                              {"nvidia/nvcc/bin/nvcc": "#!/bin/sh\n", "nvidia/nvcc/include/crt/host.h": "crt"})
        runtime = make_wheel(self.index, "runtime", "1.0",
                             {"nvidia/runtime/include/cuda.h": "cuda", "nvidia/runtime/lib/libcudart.so.12": "library",
                              "nvidia/runtime/lib/libbig.so.1": "big"})
        client = make_wheel(self.index, "client", "1.0", {"client.py": "answer = 42\n"})
        self.list = ('[toolkit]\nlayout = "cuda"\ndrop = ["lib/libbig.so.*"]\n[toolkit.wheels]\n' + compiler + runtime +
                     '[python]\nlayout = "python"\n[python.wheels]\n' + client)
        self.write_list(self.list)

    def write_list(self, text):
        (self.tree / "scripts/wheels.toml").write_text(text)

    def wheels(self, *arguments, launcher=()):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.index), PIP_CONFIG_FILE=os.devnull)
        return subprocess.run([*launcher, sys.executable, str(self.tree / "scripts/wheels"), *arguments], env=environment,
                              capture_output=True, text=True)

    def installs(self, *arguments):
        result = self.wheels(*arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.splitlines()

    def fails(self, *arguments, **keywords):
        result = self.wheels(*arguments, **keywords)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        return result.stderr

    def test_a_toolkit_is_laid_out_as_one(self):
        self.installs("toolkit")
        folder = self.tree / "build/wheels/toolkit"
        self.assertEqual((folder / "include/cuda.h").read_text(), "cuda")
        self.assertEqual((folder / "include/crt/host.h").read_text(), "crt")
        self.assertTrue(os.access(folder / "bin/nvcc", os.X_OK))
        self.assertEqual((folder / "lib64/libcudart.so").read_text(), "library")
        self.assertEqual(sorted(path.name for path in (folder / "lib").glob("lib*")), ["libcudart.so", "libcudart.so.12"])

    def test_python_s_clients_have_an_interpreter_of_their_own(self):
        self.installs("pyth*")
        answer = subprocess.run([self.tree / "build/wheels/python/bin/python", "-c", "import client; print(client.answer)"],
                                capture_output=True, text=True)
        self.assertEqual(answer.stdout, "42\n", answer.stderr)

    def test_what_is_there_needs_no_index(self):
        self.assertEqual(self.installs("*"), ["wheels: installing toolkit", "wheels: installing python"])
        shutil.rmtree(self.index)
        self.assertEqual(self.installs("*"), [])

    def test_a_changed_group_is_installed_anew(self):
        self.installs("*")
        newer = make_wheel(self.index, "client", "2.0", {"client.py": "answer = 43\n"})
        self.write_list(self.list[:self.list.index('"client==')] + newer)
        self.assertEqual(self.installs("*"), ["wheels: installing python"])

    def test_another_file_than_the_listed_one_is_refused(self):
        make_wheel(self.index, "client", "1.0", {"client.py": "answer = 44\n"})
        self.assertIn("client==1.0", self.fails("python"))
        self.assertFalse((self.tree / "build/wheels/python").exists())

    def test_a_failure_leaves_what_was_there(self):
        self.installs("python")
        self.write_list(self.list.replace("client==1.0", "client==1.1"))
        self.assertIn("client==1.1", self.fails("python"))
        self.assertTrue((self.tree / "build/wheels/python/bin/python").exists())

    def test_no_such_group(self):
        self.assertIn("toolkit, python", self.fails("tookit"))

    def test_another_machine(self):
        self.assertIn("CUDA_HOME", self.fails("toolkit", launcher=["setarch", "i686"]))


if __name__ == "__main__":
    unittest.main()
