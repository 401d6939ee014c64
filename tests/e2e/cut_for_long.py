#!/usr/bin/env python3
"""Repeats the tests in which connections of programs and Python clients are cut at random, for SECONDS.

    cut_for_long.py --build FOLDER --seconds SECONDS

Each round has other cuts. Ends at the first failure and prints its output.
"""

import argparse
import subprocess
import sys
import time

TESTS = r"^remote\.cut\.|^client\..*\.cut$|^remote\.p2p\.faults\.cut$"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", required=True, type=float)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    rounds = 0
    while time.monotonic() < end:
        done = subprocess.run(["ctest", "--test-dir", arguments.build, "--build-config", "slow", "--tests-regex", TESTS, "--parallel", "2",
                               "--stop-on-failure", "--output-on-failure", "--no-tests=error"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        rounds += 1
        if done.returncode != 0:
            print(done.stdout)
            sys.exit(f"round {rounds} failed")
    print(f"{rounds} rounds")


if __name__ == "__main__":
    main()
