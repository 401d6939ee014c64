#!/usr/bin/env python3
"""Runs a test program and compares what it prints with what an H200 printed.

    check_output.py EXPECTED COMMAND [ARGUMENT...]    succeeds if stdout equals EXPECTED, exit code 0
    check_output.py --record EXPECTED COMMAND...      writes EXPECTED instead (on a real GPU)
"""

import difflib
import subprocess
import sys


def main(arguments):
    record = arguments[:1] == ["--record"]
    if record:
        arguments = arguments[1:]
    expected_path, command = arguments[0], arguments[1:]
    result = subprocess.run(command, stdout=subprocess.PIPE)
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        sys.stdout.write(output)
        print(f"{command[-1]}: exit code {result.returncode}")
        return 1
    if record:
        with open(expected_path, "w") as file:
            file.write(output)
        return 0
    with open(expected_path) as file:
        expected = file.read()
    if output == expected:
        return 0
    sys.stdout.writelines(difflib.unified_diff(
        expected.splitlines(True), output.splitlines(True), "H200", "here"))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
