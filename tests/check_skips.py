#!/usr/bin/env python3
"""Fails if a test was skipped for a reason that is not in the list of allowed skips.

    check_skips.py RESULTS.xml ALLOWED

RESULTS.xml is what `ctest --output-junit` wrote, with the whole output of tests (--test-output-size-passed).
Skips are tests that CTest did not run, cases that GoogleTest or unittest skipped, and lines
`SKIPPED name: reason` of a test's output. Each line of ALLOWED is an allowed skip: a pattern of names, two spaces, and a
pattern of the reason that the test gives; in both, * stands for any text. The name is that of the CTest test, or
`test:case` for one of its cases.
"""

import fnmatch
import re
import sys
import xml.etree.ElementTree as ElementTree

GTEST = re.compile(r": Skipped\n(?P<reason>(?:.*\n)*?)\n*\[  SKIPPED \] (?P<name>[^\s,]+)")
UNITTEST = re.compile(r"^(?P<name>test\w*) \([^)\n]*\)(?:\n.*)? \.\.\. skipped '(?P<reason>.*)'$", re.MULTILINE)
LINE = re.compile(r"^(?:\w+: )?SKIPPED(?:: | (?P<name>\S+): )(?P<reason>.+)$", re.MULTILINE)
# The number of skipped cases that a framework prints, in case the patterns above find fewer names.
GTEST_COUNT = re.compile(r"^\[  SKIPPED \] (\d+) tests?,", re.MULTILINE)
UNITTEST_COUNT = re.compile(r"^(?:OK|FAILED) \(.*?skipped=(\d+)", re.MULTILINE)


def skips_of_output(test, output):
    """(name, reason) of each case that this output says was skipped."""
    found = []
    for pattern, count in ((GTEST, GTEST_COUNT), (UNITTEST, UNITTEST_COUNT)):
        named = [(f"{test}:{match['name']}", " ".join(match["reason"].split())) for match in pattern.finditer(output)]
        counted = sum(int(match[1]) for match in count.finditer(output))
        found += named
        if counted > len(named):
            found.append((test, f"{counted - len(named)} cases skipped without a reason"))
    found += [(f"{test}:{match['name']}" if match["name"] else test, match["reason"]) for match in LINE.finditer(output)]
    return found


def skips_of(case):
    """(name, reason) of each skip in a <testcase>."""
    name = case.get("name")
    output = case.findtext("system-out") or ""
    found = skips_of_output(name, output)
    skipped = case.find("skipped")
    # A test that did not run, or whose only case GoogleTest skipped, which CTest reports as well.
    if (skipped is not None or case.get("status") in ("notrun", "disabled")) and not found:
        message = skipped.get("message", "") if skipped is not None else ""
        found.append((name, " ".join(output.split()) or message or case.get("status")))
    return found


def read_allowed(path):
    allowed = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, gap, reason = line.partition("  ")
            if not gap:
                raise SystemExit(f"{path}:{number}: no two spaces between name and reason: {line}")
            allowed.append((name, reason.strip()))
    return allowed


def is_like(text, pattern):
    # Only * is special: ? and [ are escaped, because names contain brackets.
    return fnmatch.fnmatchcase(text, re.sub(r"([\[?])", r"[\1]", pattern))


def main(results, allowed_path):
    allowed = read_allowed(allowed_path)
    cases = ElementTree.parse(results).getroot().findall(".//testcase")
    if not cases:
        raise SystemExit(f"{results}: no test ran")
    found = [skip for case in cases for skip in skips_of(case)]
    wrong = [(name, reason) for name, reason in found
             if not any(is_like(name, names) and is_like(reason, reasons) for names, reasons in allowed)]
    for name, reason in wrong:
        print(f"skipped, and not allowed to be: {name}: {reason}")
    if wrong:
        print(f"make them run, or add the reason to {allowed_path}")
        return 1
    print(f"{len(cases)} tests, {len(found)} skips, all of them for reasons that {allowed_path} has")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
