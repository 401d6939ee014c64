#!/usr/bin/env python3
"""Checks that docs/settings.md has exactly the settings that the programs parse.

    check_settings.py ROOT SERVER

In the table of a server, options, variables and defaults must be those of `SERVER --help` and `SERVER --list-settings`. In the
table of a program, the variables must be those of common/config/variables.cpp. Variables that name one device each and those of
CUDA itself are not compared.
"""

import pathlib
import re
import subprocess
import sys

VARIABLE = re.compile(r"`(RCUDA_[A-Z0-9_]+)`")


def table(page, heading):
    """The cells of each row of the table below the heading."""
    text = page[page.index(f"\n## {heading}\n") + 1:]
    text = text[:text.find("\n## ") + 1] or text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def printed(server, option):
    command = [server, "--config", "/dev/null", option]
    return subprocess.run(command, env={}, check=True, capture_output=True, text=True).stdout


def settings_of(server):
    """Variable to (option, default), as the server prints them."""
    defaults = re.findall(r"(?m)^([A-Z0-9_]+)=(.*?)  \(default;", printed(server, "--list-settings"))
    options = re.findall(r"(?m)^  (?:-h,)?(--[a-z-]+)", printed(server, "--help"))
    named = {option[2:].upper().replace("-", "_"): option for option in options}
    return {variable: (named.get(re.sub("^RCUDA_(SERVER_)?", "", variable), ""), default) for variable, default in defaults}


def differences(what, page, parsed):
    for name in sorted(page.keys() | parsed.keys()):
        if page.get(name) != parsed.get(name):
            yield f"{what} {name}: docs/settings.md has {page.get(name)}, the program {parsed.get(name)}"


def main():
    root = pathlib.Path(sys.argv[1])
    page = (root / "docs/settings.md").read_text()
    server = {variable.strip("`"): (option.strip("`"), default.strip("`"))
              for option, variable, default, _ in table(page, "Settings of a server")}
    faults = list(differences("server", server, settings_of(sys.argv[2])))

    source = (root / "common/config/variables.cpp").read_text()
    names = re.findall(r'"([A-Z0-9_]+)"', re.search(r"kPrograms\[\] = \{(.*?)\};", source, re.DOTALL)[1])
    known = {"RCUDA_" + name: "" for name in names if name != "DRIVER"}  # DRIVER is for the server that rcuda-run --demo starts
    program = {name: "" for variables, _ in table(page, "Settings of a program") for name in VARIABLE.findall(variables)
               if not re.fullmatch(r"RCUDA_DEVICE_\d+", name)}
    faults += differences("program", program, known)
    print("\n".join(faults) or f"{len(server)} settings of a server, {len(program)} of a program")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
