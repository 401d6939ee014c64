#!/usr/bin/env python3
"""Checks that no code prints a time or a size by hand: common/base/units.h does it.

    check_units.py ROOT

Looks in the texts of client, common, integrations, p2p, server and tools for a number with a unit of time or size after it,
such as "%.1f s" and "{} MiB". Rates in GB/s, numbers of bytes and statements of PTX are allowed.
"""

import pathlib
import re
import sys

FOLDERS = ("client", "common", "integrations", "p2p", "server", "tools")
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
UNIT = r" ?(?:ns|us|ms|s|min|h|seconds?|minutes?|hours?|KB|MB|GB|KiB|MiB|GiB|K|M|G)(?![\w/%.]|\[)"
BY_HAND = re.compile(rf"%[-+0-9.*]*(?:hh|h|ll|l|z)?[dufg]{UNIT}|\{{[^{{}}\"]*\}}{UNIT}")
AFTER_NUMBER = re.compile(rf'(?:to_string|\.count)\([^"\n]*\)\s*\+\s*"{UNIT}')


def by_hand(text):
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("//"):
            continue
        if any(BY_HAND.search(literal[1]) for literal in LITERAL.finditer(line)) or AFTER_NUMBER.search(line):
            yield number, line.strip()


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    faults = [f"{path.relative_to(root)}:{number}: {line}" for folder in FOLDERS
              for path in sorted((root / folder).rglob("*")) if path.suffix in (".cpp", ".h") and path.stem != "units"
              for number, line in by_hand(path.read_text())]
    print("\n".join(faults) or "no time or size is printed by hand")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
