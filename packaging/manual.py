#!/usr/bin/env python3
"""Writes a tool's manual page, and its completions for bash, zsh and fish, from the output of the tool's --help.

    manual.py PROGRAM --version VERSION [--settings] [--data FILE] --share FOLDER

Runs PROGRAM --help, also for its subcommands. The output has CLI11's format: a first line with the program's purpose,
`Usage: `, sections of indented items, and a footer. The rest of a page is in manuals.toml. With --settings it also runs
PROGRAM --list-settings and writes the page of the configuration file. The folder of --share becomes /usr/share.
"""

import argparse
import os
import re
import subprocess
import tempfile
import tomllib

SECTIONS = ("Positionals:", "Options:", "Subcommands:")
ITEM = re.compile(r"^  (?P<name>\S.*?)(?:\s{2,}(?P<text>\S.*))?$")
CHOICES = re.compile(r":\{(?P<values>[^}]*)\}")
RANGE = re.compile(r":\w+ in \[[^\]]*\]")
SETTING = re.compile(r"^(?P<name>[A-Z_0-9]+)=(?P<value>.*)  \((?P<origin>[^;]*); (?P<type>.*)\)$")


class Help:
    """An output of --help of the program `name`. `items` maps a section to its [name, text] pairs."""

    def __init__(self, name, text):
        lines = text.splitlines()
        # A colon before the program's name begins the program's own usage. Any other colon is a part of the sentence.
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
        """Yields the names of each option, and the values that it takes, if the help lists them."""
        for name, _ in self.items["Options:"]:
            choices = CHOICES.search(name)
            yield name.split(" ")[0].split(","), choices["values"].split(",") if choices else []


def ask(program, *arguments):
    """The output of the program on a machine without settings."""
    with tempfile.TemporaryDirectory() as folder:
        # Some defaults name files in the home folder, so the page has a placeholder for it.
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


def settings_of(text, name_of):
    """Items of --list-settings: name, purpose, type and default. `name_of` converts the name of a variable."""
    items = []
    for line in text.splitlines():
        found = SETTING.match(line)
        if found:
            items.append([name_of(found["name"]), "", f" ({found['type']}; default: {found['value'] or 'none'})"])
        elif items and not items[-1][1]:
            items[-1][1] = line.strip()
    return [(name, text + value) for name, text, value in items]


def section(title, pairs):
    return [f".SH {title}", *items_of(pairs)] if pairs else []


def examples_of(data):
    return [".SH EXAMPLES", *verbatim(data["examples"].strip().splitlines())] if "examples" in data else []


def see_also(data):
    pages = [f".BR {escape(name[:-3])} {name[-3:]}" for name in data.get("see", ())]
    return [".SH SEE ALSO", ", \n".join(pages).replace(", \n", " ,\n")] if pages else []


def page(name, version, main, subcommands, settings, data):
    own = data.get(name, {})
    number = own.get("section", 1)
    kind = {1: "User Commands", 8: "System Administration"}[number]
    lines = [f'.TH {name.upper()} {number} "" "rcuda {version}" "{kind}"',
             ".SH NAME", f"{name} \\- {escape(main.purpose[0].lower() + main.purpose[1:])}",
             ".SH SYNOPSIS", *verbatim([main.usage, *(help.usage for help in subcommands)])]
    if main.footer:
        lines += [".SH DESCRIPTION", *verbatim(main.footer)]
    if main.items["Positionals:"]:
        lines += [".SH ARGUMENTS", *items_of(main.items["Positionals:"])]
    lines += [".SH OPTIONS", *items_of(main.items["Options:"])]
    if subcommands:
        lines.append(".SH COMMANDS")
    for command, help in zip(main.subcommands(), subcommands):
        lines += [f".SS {command}", escape(help.purpose) + ".",
                  *items_of(help.items["Positionals:"] + help.items["Options:"])]
    variables = [tuple(pair) for pair in own.get("environment", ())]
    for group in own.get("uses", ()):
        variables += data["variables"][group].items()
    files = [tuple(pair) for pair in own.get("files", ())]
    for group in own.get("files_of", ()):
        files += data["files"][group].items()
    lines += [*section("EXIT STATUS", own.get("exit")),
              *section("ENVIRONMENT", variables + settings_of(settings, str)),
              *section("FILES", files), *examples_of(own), *see_also(own)]
    return "\n".join(lines) + "\n"


def settings_page(version, settings, data):
    """The page of the configuration file."""
    def key_of(variable):
        return variable.removeprefix("RCUDA_SERVER_").removeprefix("RCUDA_").lower()
    # CUDA's own settings are environment variables only, so the page of the file leaves them out.
    pairs = [pair for pair in settings_of(settings, key_of) if not pair[0].startswith("cuda_")]
    lines = [f'.TH {data["page"].upper()} 5 "" "rcuda {version}" "File Formats"',
             ".SH NAME", f"{data['page']} \\- {escape(data['purpose'])}",
             ".SH DESCRIPTION", *(escape(line) for line in data["description"].strip().splitlines()),
             *section("SETTINGS", pairs),
             ".SH LIMITS", *verbatim(data["tables"].strip().splitlines()), *items_of(data["limits"]),
             *section("FILES", data["files"]), *examples_of(data), *see_also(data)]
    return "\n".join(lines) + "\n"


def bash_completion(name, main, subcommands):
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


def takes_value(item):
    return " " in CHOICES.sub("", item)


def shell_text(text):
    """The text in single quotes, for a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_completion(name, main, subcommands):
    """Completes the same as bash_completion(), and shows the text of each option."""
    def options_of(help):
        pairs = [(option, text) for item, text in help.items["Options:"] for option in item.split(" ")[0].split(",")]
        return " ".join(shell_text(f"{option.replace(':', chr(92) + ':')}:{text}") for option, text in pairs)
    lines = [f"#compdef {name}", f"# Completion of {name}, made by packaging/manual.py.", "local -a options commands",
             f"options=({options_of(main)})"]
    values = [f"  {'|'.join(names)}) compadd -- {' '.join(choices)}; return ;;"
              for help in (main, *subcommands) for names, choices in help.options() if choices]
    if values:
        lines += ["case $words[CURRENT-1] in", *values, "esac"]
    if subcommands:
        described = " ".join(shell_text(f"{command}:{help.purpose}")
                             for command, help in zip(main.subcommands(), subcommands))
        lines += [f"commands=({described})", "case $words[2] in",
                  *(f"  {command}) options=({options_of(help)}); commands=() ;;"
                    for command, help in zip(main.subcommands(), subcommands)), "esac",
                  "_describe -t commands command commands"]
    lines += ["_describe -o option options", "_files"]
    return "\n".join(lines) + "\n"


def fish_completion(name, main, subcommands):
    def option_lines(help, condition):
        for (item, text), (names, choices) in zip(help.items["Options:"], help.options()):
            words = [f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}" for option in names]
            if choices:
                words.append(f"-x -a {shell_text(' '.join(choices))}")
            elif takes_value(item):
                words.append("-r")
            yield f"complete -c {name} {condition}{' '.join(words)} -d {shell_text(text)}"
    none = "-n __fish_use_subcommand " if subcommands else ""
    lines = [f"# Completion of {name}, made by packaging/manual.py.", *option_lines(main, none)]
    for command, help in zip(main.subcommands(), subcommands):
        lines.append(f"complete -c {name} -n __fish_use_subcommand -a {command} -d {shell_text(help.purpose)}")
        lines += option_lines(help, f"-n '__fish_seen_subcommand_from {command}' ")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--version", required=True)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--data", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "manuals.toml"))
    parser.add_argument("--share", required=True)
    arguments = parser.parse_args()
    name = os.path.basename(arguments.program)
    with open(arguments.data, "rb") as file:
        data = tomllib.load(file)
    help = Help(name, ask(arguments.program, "--help"))
    subcommands = [Help(name, ask(arguments.program, command, "--help")) for command in help.subcommands()]
    settings = ask(arguments.program, "--config", "/dev/null", "--list-settings") if arguments.settings else ""
    number = data.get(name, {}).get("section", 1)
    files = {f"man/man{number}/{name}.{number}": page(name, arguments.version, help, subcommands, settings, data),
             f"bash-completion/completions/{name}": bash_completion(name, help, subcommands),
             f"zsh/vendor-completions/_{name}": zsh_completion(name, help, subcommands),
             f"fish/vendor_completions.d/{name}.fish": fish_completion(name, help, subcommands)}
    if settings:
        files[f"man/man5/{data['settings']['page']}.5"] = settings_page(arguments.version, settings, data["settings"])
    for path, text in files.items():
        path = os.path.join(arguments.share, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
