#!/usr/bin/env python3
"""tests/check_skips.py: what it regards as a skip, and which skips it allows."""

import pathlib
import subprocess
import sys
import tempfile
import unittest
from xml.sax.saxutils import escape, quoteattr

CHECK = pathlib.Path(__file__).resolve().parents[2] / "check_skips.py"

GTEST = """[ RUN      ] Links/Contract.Maps/tcp
/a/b/contract_test.cpp:12: Skipped
only shared memory maps regions

[  SKIPPED ] Links/Contract.Maps/tcp (0 ms)
[ RUN      ] Links/Contract.Sends/tcp
[       OK ] Links/Contract.Sends/tcp (1 ms)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Links/Contract.Maps/tcp
"""
UNITTEST = """test_installs (__main__.InstallTest.test_installs) ... ok
test_verbs (__main__.InstallTest.test_verbs) ... skipped 'built without rdma-core'

OK (skipped=1)
"""


def case(name, output="", status="run", skipped=None):
    inner = f"<skipped message={quoteattr(skipped)}/>" if skipped is not None else ""
    return f'<testcase name="{name}" status="{status}">{inner}<system-out>{escape(output)}</system-out></testcase>'


class CheckSkipsTest(unittest.TestCase):
    def check(self, *cases, allowed=""):
        with tempfile.TemporaryDirectory() as folder:
            results, allowed_path = pathlib.Path(folder, "tests.xml"), pathlib.Path(folder, "allowed.txt")
            results.write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            allowed_path.write_text(allowed)
            run = subprocess.run([sys.executable, CHECK, results, allowed_path], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    def refused(self, text, *cases, allowed=""):
        code, output = self.check(*cases, allowed=allowed)
        self.assertEqual(code, 1)
        self.assertIn(text, output)

    def passes(self, *cases, allowed=""):
        code, output = self.check(*cases, allowed=allowed)
        self.assertEqual(code, 0, output)

    def test_nothing_was_skipped(self):
        self.passes(case("a", "SKIPPED is a word\nof [  SKIPPED ] talk"), case("b"))

    def test_no_test_ran(self):
        self.refused("no test ran")

    def test_gtest_cases(self):
        name = "contract_test:Links/Contract.Maps/tcp: only shared memory maps regions"
        self.refused(name, case("contract_test", GTEST))
        self.passes(case("contract_test", GTEST), allowed="contract_test:*  only shared memory maps regions\n")
        self.refused(name, case("contract_test", GTEST), allowed="other_test:*  only shared memory maps regions\n")
        self.refused(name, case("contract_test", GTEST), allowed="contract_test:*  only verbs has one\n")

    def test_gtest_case_that_ctest_knows_as_skipped(self):
        alone = case("a.Contract.Maps", GTEST, "notrun", "SKIP_REGULAR_EXPRESSION_MATCHED")
        self.refused("maps regions", alone)
        self.passes(alone, allowed="a.*  only shared memory maps regions\n")

    def test_gtest_case_without_reason(self):
        silent = "[  SKIPPED ] 2 tests, listed below:\n"
        self.refused("2 cases skipped without a reason", case("a", silent))

    def test_unittest_cases(self):
        self.refused("e2e:test_verbs: built without rdma-core", case("e2e", UNITTEST))
        self.passes(case("e2e", UNITTEST), allowed="e2e:test_verbs  built without rdma-core\n")
        self.refused("1 cases skipped without a reason", case("e2e", "s.\n\nOK (skipped=1)\n"))

    def test_skip_return_code(self):
        skipped = case("rdma", "rdma: SKIPPED: not installed: qemu\n", "notrun", "SKIP_RETURN_CODE=77")
        self.refused("rdma: not installed: qemu", skipped)
        self.passes(skipped, allowed="rdma  not installed: *\n")
        self.refused("a: SKIP_RETURN_CODE=77", case("a", "", "notrun", "SKIP_RETURN_CODE=77"))

    def test_disabled(self):
        self.refused("a: disabled", case("a", "", "disabled"))

    def test_parts_of_clients(self):
        output = "one: 1\nSKIPPED graphs: no [graphs]\n"
        self.refused("client:graphs: no [graphs]", case("client", output))
        self.passes(case("client", output), allowed="# why\n\nclient:graphs  no [graphs]\n")

    def test_malformed_list(self):
        self.refused("allowed.txt:1: no two spaces", case("a"), allowed="a b\n")


if __name__ == "__main__":
    unittest.main()
