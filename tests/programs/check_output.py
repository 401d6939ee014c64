#!/usr/bin/env python3
"""Runs a test program and compares its output with that of an H200.

    check_output.py EXPECTED COMMAND [ARGUMENT...]    succeeds if stdout equals EXPECTED, exit code 0
    check_output.py --record EXPECTED COMMAND...      writes EXPECTED instead (on a real GPU)
    check_output.py --pattern REGEX COMMAND...        succeeds if REGEX is found in stdout, exit code 0;
                                                      for output that varies, such as times
"""

import re
import subprocess
import sys


def main(arguments):
    record = arguments[:1] == ["--record"]
    pattern = arguments[:1] == ["--pattern"]
    if record or pattern:
        arguments = arguments[1:]
    expected, command = arguments[0], arguments[1:]
    result = subprocess.run(command, stdout=subprocess.PIPE)
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        sys.stdout.write(output)
        print(f"{command[-1]}: exit code {result.returncode}")
        return 1
    if pattern:
        sys.stdout.write(output)
        if re.search(expected, output):
            return 0
        print(f"{command[-1]}: nothing like {expected}")
        return 1
    if record:
        with open(expected, "w") as file:
            file.write(output)
        return 0
    with open(expected) as file:
        recorded = file.read()
    if output == recorded:
        return 0
    import difflib  # only here: this program starts hundreds of times
    sys.stdout.writelines(difflib.unified_diff(
        recorded.splitlines(True), output.splitlines(True), expected, "here"))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
