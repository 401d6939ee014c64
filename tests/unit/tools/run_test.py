#!/usr/bin/env python3
"""rcuda-run: the program gets its arguments as they are written.

    run_test.py RCUDA_RUN
"""

import json
import subprocess
import sys
import unittest

RUN = ""
SAY = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]


class RunTest(unittest.TestCase):
    def run_with(self, *arguments):
        # No call of CUDA is made: any file may stand for the library that is preloaded.
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


if __name__ == "__main__":
    RUN = sys.argv.pop(1)
    unittest.main()
