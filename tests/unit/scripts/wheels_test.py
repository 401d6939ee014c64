#!/usr/bin/env python3
"""scripts/wheels with wheels that this test makes, so it downloads nothing."""

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
    """Makes a wheel of these files; returns its line for wheels.toml."""
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
        folder = pathlib.Path(self.temporary.name)
        self.cache, self.store = folder / "cache", folder / "cache/rcuda/wheels"
        self.index, self.tree, self.other_tree = folder / "index", folder / "tree", folder / "other"
        self.index.mkdir()
        for tree in (self.tree, self.other_tree):
            (tree / "scripts").mkdir(parents=True)
            shutil.copy(SCRIPTS / "wheels", tree / "scripts")
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
        for tree in (self.tree, self.other_tree):
            (tree / "scripts/wheels.toml").write_text(text)

    def start(self, *arguments, tree=None, launcher=()):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.index), PIP_CONFIG_FILE=os.devnull,
                           XDG_CACHE_HOME=str(self.cache))
        script = (tree or self.tree) / "scripts/wheels"
        return subprocess.Popen([*launcher, sys.executable, str(script), *arguments], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def lines_of(self, process):
        output, errors = process.communicate()
        self.assertEqual((process.returncode, errors), (0, ""))
        return output.splitlines()

    def installs(self, *arguments, **keywords):
        return self.lines_of(self.start(*arguments, **keywords))

    def fails(self, *arguments, **keywords):
        process = self.start(*arguments, **keywords)
        output, errors = process.communicate()
        self.assertEqual(process.returncode, 1, output + errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        return errors

    def answer(self, tree):
        return subprocess.run([tree / "build/wheels/python/bin/python", "-c", "import client; print(client.answer)"],
                              capture_output=True, text=True, check=True).stdout

    def install_newer_client(self):
        newer = make_wheel(self.index, "client", "2.0", {"client.py": "answer = 43\n"})
        self.write_list(self.list[:self.list.index('"client==')] + newer)
        self.assertEqual(self.installs("python"), ["wheels: installing python"])

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
        self.assertEqual(self.answer(self.tree), "42\n")

    def test_what_is_there_needs_no_index_in_any_clone(self):
        self.assertEqual(self.installs("*"), ["wheels: installing toolkit", "wheels: installing python"])
        shutil.rmtree(self.index)
        self.assertEqual(self.installs("*"), [])
        shutil.rmtree(self.tree)
        self.assertEqual(self.installs("*", tree=self.other_tree), [])
        self.assertEqual(self.answer(self.other_tree), "42\n")

    def test_a_changed_group_is_installed_anew_and_changes_no_other_clone(self):
        for tree in (self.tree, self.other_tree):
            self.installs("python", tree=tree)
        self.install_newer_client()
        self.assertEqual([self.answer(self.tree), self.answer(self.other_tree)], ["43\n", "42\n"])

    def test_two_clones_at_once_install_once(self):
        processes = [self.start("python", tree=tree) for tree in (self.tree, self.other_tree)]
        output = [line for process in processes for line in self.lines_of(process)]
        self.assertEqual(output, ["wheels: installing python"])
        self.assertEqual([self.answer(self.tree), self.answer(self.other_tree)], ["42\n", "42\n"])

    def test_an_interrupted_install_is_begun_anew(self):
        process = self.start("python")
        process.stdout.readline()  # it prints this line before it begins to install
        process.kill()
        process.communicate()
        self.assertEqual(self.installs("python"), ["wheels: installing python"])
        self.assertEqual(self.answer(self.tree), "42\n")
        self.assertEqual(list(self.store.glob(".new-*")), [])

    def test_what_is_no_longer_whole_is_replaced(self):
        self.installs("python")
        interpreter = self.tree / "build/wheels/python/bin/python"
        interpreter.unlink()
        interpreter.symlink_to(self.index / "python")
        self.assertEqual(self.installs("python"), ["wheels: installing python"])
        shutil.rmtree(self.cache)
        self.assertEqual(self.installs("python"), ["wheels: installing python"])
        self.assertEqual(self.answer(self.tree), "42\n")

    def test_without_a_cache_everything_is_in_the_tree(self):
        self.cache.write_text("a file")
        (self.tree / "build/wheels/python/bin").mkdir(parents=True)  # as an earlier scripts/wheels made it
        self.installs("python")
        self.assertEqual(self.installs("python"), [])
        self.assertEqual(self.answer(self.tree), "42\n")
        self.install_newer_client()
        self.assertEqual(self.answer(self.tree), "43\n")
        self.assertEqual(len(list((self.tree / "build/wheels/.own").glob("python-*"))), 1)

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
