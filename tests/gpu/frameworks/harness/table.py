"""The table of a run, as text and as a part of the page docs/compatibility.md."""

import os

from harness.results import Verdict


class Row:
    def __init__(self, framework, name, cells):
        self.framework, self.name, self.cells = framework, name, cells  # mode: text


def text_table(rows, modes):
    """The table as text. Rows that are the same in every mode share one line for each framework."""
    lines, plain = [], {}
    for row in rows:
        remote = [row.cells[mode] for mode in modes if mode != "native"]
        if row.cells.get("native", "ok") == "ok" and all(cell == "same" for cell in remote):
            plain.setdefault(row.framework, []).append(row.name)
        else:
            lines.append(f"{row.framework + ': ' + row.name:<38} " + " | ".join(
                f"{mode}: {row.cells[mode]}" for mode in modes if mode in row.cells))
    out = []
    if plain:
        out.append("The same in every mode (" + ", ".join(modes) + "):")
        out += [f"  {framework}: {', '.join(names)}" for framework, names in plain.items()]
    if lines:
        out.append("Anything else:")
        out += ["  " + line for line in lines]
    return "\n".join(out)


def _cell(text):
    return text.replace("|", "/").replace("\n", " ")


def markdown_table(rows, modes):
    head = ["framework", "what runs", *modes]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.framework, row.name, *[_cell(row.cells.get(mode, "not run")) for mode in modes]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def version_table(versions):
    lines = ["| what | version |", "|---|---|"]
    return "\n".join(lines + [f"| {_cell(key)} | {_cell(value)} |" for key, value in versions])


BEGIN, END = "<!-- made by tests/gpu/frameworks.py: begin -->", "<!-- made by tests/gpu/frameworks.py: end -->"


def write_markdown(path, rows, modes, versions, details, known):
    """Writes the table between the marks BEGIN and END of the page. A file without marks is replaced."""
    parts = ["## The run", version_table(versions), "## The table", markdown_table(rows, modes)]
    if details:
        parts += ["### Operators that differ",
                  "\n".join(f"- `{name}`, {mode}: {_cell(text)}" for name, mode, text in details)]
    parts += ["## Known differences",
              "\n".join(["| what | modes | cause | plan |", "|---|---|---|---|"] + [
                  f"| `{pattern}` | {', '.join(where)} | {_cell(reason)} | {_cell(plan)} |"
                  for pattern, where, reason, plan in known.entries])
              if known.entries else "None."]
    table = f"{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}\n"
    old = ""
    if os.path.exists(path):
        with open(path) as file:
            old = file.read()
    if BEGIN in old and END in old:
        table = old[:old.index(BEGIN)] + table + old[old.index(END) + len(END):].lstrip("\n")
    with open(path, "w") as file:
        file.write(table)


def failed(verdict):
    return verdict.kind == Verdict.DIFFERS
