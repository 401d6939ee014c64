#!/usr/bin/env python3
"""rcuda-run: the program gets its arguments unchanged, and --cdi configures containers in the same way.

    run_test.py RCUDA_RUN
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

RUN = ""
SAY = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


class RunTest(unittest.TestCase):
    def run_with(self, *arguments):
        # The programs do not call CUDA, so any file serves as the preloaded library.
        return subprocess.run([RUN, "--devices", "nowhere:0", "--library", "/dev/null", *arguments],
                              capture_output=True, text=True)

    def test_arguments_arrive_as_they_are(self):
        arguments = ["[1,2,3]", "[]", "{}", "", "a b", "\"q\"", "%%", "--", "--sync", "-d", "x=1"]
        for separator in ([], ["--"]):
            result = self.run_with("--sync", *separator, *SAY, *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout), arguments)

    def test_a_program_may_be_named_like_an_option(self):
        result = self.run_with("--", "--no-such-program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("cannot run --no-such-program", result.stderr)

    def test_what_is_no_option_is_refused(self):
        for arguments in (["--bogus", "--", *SAY], ["-x", *SAY], ["--"], []):
            result = self.run_with(*arguments)
            self.assertNotEqual(result.returncode, 0, arguments)
            self.assertEqual(result.stdout, "")
            self.assertIn("rcuda-run: ", result.stderr)

    def test_a_library_that_cannot_be_preloaded(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a b.so", "a:b.so"):
                path = os.path.join(folder, name)
                os.symlink("/dev/null", path)
                result = subprocess.run([RUN, "--devices", "nowhere:0", "--library", path, "--", *SAY],
                                        capture_output=True, text=True)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(f"LD_PRELOAD cannot name {path}", result.stderr)

    def cdi(self, pool, *options, status=0, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RCUDA_")}
        environment.update(variables)
        result = subprocess.run([RUN, *(["--devices", pool] if pool else []), "--library", "/dev/null", *options, "--cdi"],
                                capture_output=True, text=True, env=environment)
        self.assertEqual(result.returncode, status, result.stderr)
        return json.loads(result.stdout) if status == 0 else result.stderr

    def test_a_cdi_specification(self):
        with tempfile.TemporaryDirectory() as home:
            spec = self.cdi("node1:0,tcp:[fe80::1]@9000:3", "--wait", "60s", XDG_CONFIG_HOME=home,
                            RCUDA_SERVER_PORT="1", RCUDA_PLUGIN_DIR="/here")
        self.assertEqual((spec["cdiVersion"], spec["kind"]), ("0.5.0", "rcuda/gpu"))
        edits = {device["name"]: device["containerEdits"]["env"] for device in spec["devices"]}
        first, second = "RCUDA_DEVICE_0=node1@8308:0", "RCUDA_DEVICE_1=tcp:[fe80::1]@9000:3"
        self.assertEqual(edits, {"0": [first], "1": [second], "all": [first, second]})
        self.assertEqual(spec["containerEdits"]["env"], ["LD_PRELOAD=/opt/rcuda/lib/null",
                                                         "LD_LIBRARY_PATH=/opt/rcuda/lib/rcuda", "RCUDA_WAIT=60s"])
        for mount in spec["containerEdits"]["mounts"]:
            self.assertIn("ro", mount["options"])

    def test_cdi_mounts_credentials_and_holds_none(self):
        with tempfile.TemporaryDirectory() as home:
            os.mkdir(home + "/rcuda")
            token = home + "/rcuda/token"
            with open(token, "w") as file:
                file.write("a secret")
            spec = self.cdi("node1:0", XDG_CONFIG_HOME=home, RCUDA_TLS_AUTHORITIES=token)
            mounts = {mount["containerPath"]: mount["hostPath"] for mount in spec["containerEdits"]["mounts"]}
            self.assertEqual((mounts["/opt/rcuda/token"], mounts["/opt/rcuda/authorities.pem"]), (token, token))
            self.assertIn("RCUDA_TOKEN_FILE=/opt/rcuda/token", spec["containerEdits"]["env"])
            self.assertIn("RCUDA_TLS_AUTHORITIES=/opt/rcuda/authorities.pem", spec["containerEdits"]["env"])
            self.assertNotIn("secret", json.dumps(spec))
            error = self.cdi("node1:0", status=2, RCUDA_TOKEN_FILE=home + "/none")
            self.assertIn(f"RCUDA_TOKEN_FILE: there is no file {home}/none", error)

    def test_cdi_mounts_the_sockets_for_containers_only(self):
        def mounted(pool):
            mounts = self.cdi(pool)["containerEdits"]["mounts"]
            return [mount["hostPath"] for mount in mounts if mount["containerPath"].startswith("/run/rcuda")]

        folder = "/run/rcuda/containers"
        self.assertEqual(mounted("node1:0,local:0"), [folder] if os.path.isdir(folder) else [])
        self.assertEqual(mounted("node1:0,127.0.0.1:0"), [])

    def test_what_no_cdi_specification_can_be_made_of(self):
        self.assertIn("no GPUs are named", self.cdi("", status=2))
        self.assertIn("\":gpu\" is missing", self.cdi("node1", status=2))
        self.assertIn("named twice", self.cdi("node1:0,node1:0", status=2))
        self.assertIn("name no program", self.run_with("--cdi", "--", *SAY).stderr)


if __name__ == "__main__":
    RUN = sys.argv.pop(1)
    unittest.main()
