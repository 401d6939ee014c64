#!/usr/bin/env python3
"""Writes a tool's manual page and bash completion from what the tool says of its options.

    manual.py PROGRAM --version VERSION [--settings] --man FILE --completion FILE

Asks PROGRAM for --help, also of its subcommands, and with --settings for --list-settings. What it asks is what
CLI11 prints: a first line that says what the program is for, `Usage: `, sections of indented items, and a footer.
"""

import argparse
import os
import re
import subprocess
import tempfile

SECTIONS = ("Positionals:", "Options:", "Subcommands:")
ITEM = re.compile(r"^  (?P<name>\S.*?)(?:\s{2,}(?P<text>\S.*))?$")
CHOICES = re.compile(r":\{(?P<values>[^}]*)\}")
RANGE = re.compile(r":\w+ in \[[^\]]*\]")
SETTING = re.compile(r"^(?P<name>[A-Z_0-9]+)=(?P<value>.*)  \((?P<origin>[^;]*); (?P<type>.*)\)$")


class Help:
    """One answer of the program `name` to --help. `items` maps a section to its [name, text] pairs."""

    def __init__(self, name, text):
        lines = text.splitlines()
        # A usage of the program's own follows a colon. Any other colon is a part of the sentence.
        self.purpose, own_usage = lines[0].strip().rstrip("."), ""
        if f": {name} " in self.purpose:
            self.purpose, own_usage = self.purpose.split(": ", 1)
        self.usage, self.footer = "", []
        self.items = {section: [] for section in SECTIONS}
        section = None
        for line in lines[1:]:
            match = ITEM.match(line)
            if line.startswith("Usage: "):
                self.usage = own_usage or line.removeprefix("Usage: ")
            elif line in SECTIONS:
                section = line
            elif section and line.startswith("   ") and self.items[section]:
                self.continue_item(self.items[section][-1], line.strip())
            elif section and match:
                self.items[section].append([match["name"], match["text"] or ""])
            elif line.strip() or self.footer:
                section = None
                self.footer.append(line)

    @staticmethod
    def continue_item(item, text):
        item[1] = f"{item[1]} {text}".strip()

    def subcommands(self):
        return [name.split()[0] for name, _ in self.items["Subcommands:"]]

    def options(self):
        """Each as its names and the values that it takes, if they are listed."""
        for name, _ in self.items["Options:"]:
            choices = CHOICES.search(name)
            yield name.split(" ")[0].split(","), choices["values"].split(",") if choices else []


def ask(program, *arguments):
    """What the program prints on a machine without settings."""
    with tempfile.TemporaryDirectory() as folder:
        # Some defaults are in the home folder, which is nobody's in particular.
        environment = {"PATH": folder, "HOME": "/home/USER"}
        name = os.path.basename(program)
        os.symlink(os.path.abspath(program), os.path.join(folder, name))
        return subprocess.run([name, *arguments], env=environment, check=True, capture_output=True, text=True).stdout


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def items_of(pairs):
    lines = []
    for name, text in pairs:
        lines += [".TP", f".B {escape(RANGE.sub('', CHOICES.sub('', name)))}", escape(text)]
    return lines


def verbatim(text):
    return [".nf", *(escape(line) for line in text), ".fi"]


def settings_of(text):
    lines = []
    found = None
    for line in text.splitlines():
        found_here = SETTING.match(line)
        if found_here:
            found = found_here
            lines += [".TP", f".B {escape(found['name'])}"]
        elif found:
            value = f" ({found['type']}; default: {found['value'] or 'none'})"
            lines.append(escape(line.strip() + value))
    return lines


def page(name, version, main, subcommands, settings):
    lines = [f'.TH {name.upper()} 1 "" "rcuda {version}" "User Commands"',
             ".SH NAME", f"{name} \\- {escape(main.purpose[0].lower() + main.purpose[1:])}",
             ".SH SYNOPSIS", *verbatim([main.usage, *(help.usage for help in subcommands)])]
    if main.items["Positionals:"]:
        lines += [".SH ARGUMENTS", *items_of(main.items["Positionals:"])]
    lines += [".SH OPTIONS", *items_of(main.items["Options:"])]
    if subcommands:
        lines.append(".SH COMMANDS")
    for command, help in zip(main.subcommands(), subcommands):
        lines += [f".SS {command}", escape(help.purpose) + ".",
                  *items_of(help.items["Positionals:"] + help.items["Options:"])]
    if main.footer:
        lines += [".SH DESCRIPTION", *verbatim(main.footer)]
    if settings:
        lines += [".SH ENVIRONMENT",
                  "A line of the configuration file sets the same, without RCUDA_SERVER_ and in lower case.",
                  *settings_of(settings)]
    return "\n".join(lines) + "\n"


def completion(name, main, subcommands):
    """Completes subcommands, options, values that are listed, and otherwise files."""
    function = "_" + name.replace("-", "_")
    words = [name for names, _ in main.options() for name in names]
    values, cases = [], []
    for help in (main, *subcommands):
        for names, choices in help.options():
            if choices:
                values.append(f"    {'|'.join(names)}) COMPREPLY=($(compgen -W '{' '.join(choices)}' -- \"$2\")); return ;;")
    for command, help in zip(main.subcommands(), subcommands):
        options = " ".join(name for names, _ in help.options() for name in names)
        cases.append(f"    {command}) words='{options}' ;;")
    lines = [f"# Completion of {name}, made by packaging/manual.py.", f"{function}() {{",
             f"  local words='{' '.join(words + main.subcommands())}'"]
    if values:
        lines += ["  case $3 in", *values, "  esac"]
    if cases:
        lines += ["  case ${COMP_WORDS[1]} in", *cases, "  esac"]
    lines += ["  COMPREPLY=($(compgen -W \"$words\" -- \"$2\"))", "}",
              f"complete -o default -F {function} {name}"]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--version", required=True)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--man", required=True)
    parser.add_argument("--completion", required=True)
    arguments = parser.parse_args()
    name = os.path.basename(arguments.program)
    help = Help(name, ask(arguments.program, "--help"))
    subcommands = [Help(name, ask(arguments.program, command, "--help")) for command in help.subcommands()]
    settings = ask(arguments.program, "--config", "/dev/null", "--list-settings") if arguments.settings else ""
    for path, text in ((arguments.man, page(name, arguments.version, help, subcommands, settings)),
                       (arguments.completion, completion(name, help, subcommands))):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
