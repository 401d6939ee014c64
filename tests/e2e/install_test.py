#!/usr/bin/env python3
"""`cmake --install`: a program can use the installed tree in each of the ways that the README
describes.

    install_test.py --build FOLDER --programs FOLDER --nvml PROGRAM [unittest arguments]
"""

import glob
import os
import re
import subprocess
import tempfile
import unittest

import servers
from servers import eventually, run_tests, Server

BUILD = PROGRAMS = NVML = None


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run(["cmake", "--install", BUILD], check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, DESTDIR=cls.folder.name))
        (server,) = glob.glob(cls.folder.name + "/**/bin/rcuda-server", recursive=True)
        cls.prefix = os.path.dirname(os.path.dirname(server))
        (client,) = glob.glob(cls.prefix + "/lib*/**/librcuda.so", recursive=True)
        cls.libraries = os.path.dirname(client)
        cls.server = Server(cls.prefix)

    @classmethod
    def tearDownClass(cls):
        outcome = cls.server.stop()
        cls.folder.cleanup()
        if outcome != 0:
            raise AssertionError(f"rcuda-server: {outcome}\n{cls.server.text()}")

    def program(self, name, command=(), **variables):
        environment = dict(os.environ, RCUDA_DEVICES=self.server.address())
        environment.update(variables)
        preload = filter(None, (servers.PRELOAD, variables.get("LD_PRELOAD")))
        environment["LD_PRELOAD"] = " ".join(preload)
        result = subprocess.run([*command, os.path.join(PROGRAMS, name)], env=environment,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_names_programs_search_for(self):
        for name in ("libcuda.so", "libcuda.so.1"):
            link = os.path.join(self.libraries, "rcuda", name)
            self.assertFalse(os.path.isabs(os.readlink(link)))
            self.assertEqual(os.path.realpath(link),
                             os.path.realpath(os.path.join(self.libraries, "librcuda.so")))

    def test_nvml_lies_beside_libcuda(self):
        library = os.path.join(self.libraries, "rcuda", "libnvidia-ml.so.1")
        dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
        self.assertRegex(dynamic, r"SONAME.*\[libnvidia-ml\.so\.1\]")
        # The program expects that no other process uses the server.
        self.assertTrue(eventually(lambda: not self.server.sessions(self.prefix)), self.server.status(self.prefix))
        self.program(NVML, command=[os.path.join(self.prefix, "bin/rcuda-run"), "--"])

    def test_nothing_points_into_the_build(self):
        for folder in ("bin", os.path.relpath(self.libraries, self.prefix)):
            for file in glob.glob(os.path.join(self.prefix, folder, "**/*"), recursive=True):
                if not os.path.isfile(file) or os.path.islink(file):
                    continue
                dynamic = subprocess.run(["readelf", "-d", file], capture_output=True, text=True).stdout
                for path in re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic):
                    self.assertNotIn(BUILD, path, file)

    def test_every_tool_says_its_version(self):
        answers = set()
        for tool in sorted(os.listdir(os.path.join(self.prefix, "bin"))):
            said = subprocess.run([os.path.join(self.prefix, "bin", tool), "--version"], check=True, capture_output=True,
                                  text=True).stdout
            self.assertRegex(said, rf"^{tool} \d+\.\d+\.\d+ \(build [0-9a-f]{{12}}\)\n$")
            answers.add(said.split()[1])
        self.assertEqual(len(answers), 1)

    def test_preloaded(self):
        self.program("vector_add", LD_PRELOAD=os.path.join(self.libraries, "librcuda.so"))

    def test_found_by_its_usual_name(self):
        # vector_add is linked with cudart statically and loads libcuda.so.1; driver_api was linked
        # with -lcuda.
        folder = os.path.join(self.libraries, "rcuda")
        self.program("vector_add", LD_LIBRARY_PATH=folder)
        self.program("driver_api", LD_LIBRARY_PATH=folder)

    def test_rcuda_run(self):
        self.program("vector_add", command=[os.path.join(self.prefix, "bin/rcuda-run"), "--devices",
                                            self.server.address(), "--"])

    def test_the_server_finds_the_verbs_plug_in_of_the_installed_tree(self):
        if not os.path.exists(os.path.join(self.libraries, "rcuda/librcuda-verbs.so")):
            self.skipTest("built without rdma-core")
        gpu = "verbs:" + self.server.address()
        environment = {name: value for name, value in os.environ.items() if name != "RCUDA_PLUGIN_DIR"}
        plan = subprocess.run([os.path.join(self.prefix, "bin/rcuda-p2p"), "plan", "--from", gpu, "--to", gpu],
                              env=environment, capture_output=True, text=True)
        self.assertNotIn("librcuda-verbs.so", plan.stderr)
        if plan.returncode != 0:  # the plug-in reports that there is no adapter
            self.assertIn("this server cannot use verbs", plan.stderr)

    def test_the_server_serves_softgpu_of_the_installed_tree(self):
        self.assertIn(self.prefix, self.server.text())


if __name__ == "__main__":
    run_tests(globals(), "programs", "nvml")
