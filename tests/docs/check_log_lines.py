#!/usr/bin/env python3
"""Checks that docs/operate.md says what each line of a server's log means.

    check_log_lines.py ROOT

Takes the texts of RCUDA_INFO, RCUDA_WARN, RCUDA_ERROR and RCUDA_LOG in server/ and p2p/. Each must begin like a line in the
first column of the page's table: " / " separates the lines of one row, and "..." and names such as CLIENT stand for any text.
Texts without two words of their own, such as "%s", are not checked. It is also an error if no text matches a line of the table,
unless other code in server/, p2p/ or common/ composes that line, or if no program has a message of docs/failures.md.
"""

import pathlib
import re
import sys

CALL = re.compile(r'RCUDA_(?:INFO\(|WARN\(|ERROR\(|LOG\([^"]*?,)\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
FORMAT = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j|t)?[a-zA-Z]")
WORD = re.compile(r"[a-z]{2,}")
NAMES = ("ADDRESS BINARY CHANGED CLIENT FILE HOST MEDIUM MEMORY N NAME PATH PEER PORT PROGRAM SIGNAL SIZE TIME USER USERS VARIABLE "
         "VERSION WHY WORKER").split()
ANY = re.compile(r" ?\.\.\.|\b(?:%s)\b|\(s\)" % "|".join(NAMES))


def sources(root, *folders):
    # Without the character '"', which would look like the begin of a literal.
    return [path.read_text().replace("'\"'", "''") for folder in folders for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".cpp", ".h")]


def texts(source):
    for call in CALL.finditer(source):
        yield "".join(LITERAL.findall(call[1])).replace('\\"', '"')


def rows(page):
    """The lines of the first column of the last table."""
    table = page[page.index("| line | meaning"):].splitlines()[2:]
    return [line.strip() for row in table if row.startswith("|") for line in row.split("|")[1].split(" / ")]


def pattern(line):
    return re.compile(".*".join(re.escape(part) for part in ANY.split(line)))


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    lines = {line: pattern(line) for line in rows((root / "docs/operate.md").read_text())}
    found = {text for source in sources(root, "server", "p2p") for text in texts(source)}
    found = sorted(text for text in found
                   if len(WORD.findall(FORMAT.sub(" ", text))) >= 2 and not text.startswith("internal error"))
    faults = [f"not in the table of docs/operate.md: {text}" for text in found
              if not any(line.match(FORMAT.sub("§", text)) for line in lines.values())]
    everything = "".join("".join(LITERAL.findall(source)) for source in sources(root, "server", "p2p", "common"))
    for line in lines:
        words = max(ANY.split(line), key=len).strip(" :,;()")
        if words not in everything:
            faults.append(f"docs/operate.md has a line that no server writes: {line}")
    everything += "".join("".join(LITERAL.findall(source)) for source in sources(root, "client"))
    messages = [" ".join(quoted.split()) for quoted in re.findall(r'"([^"]+)"', (root / "docs/failures.md").read_text())]
    for message in messages:
        if max(ANY.split(message), key=len).strip(" :,;()") not in everything:
            faults.append(f"docs/failures.md has a message that no program writes: {message}")
    print("\n".join(faults) or f"{len(found)} texts, {len(lines)} lines, {len(messages)} messages")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
