"""Reads the lines of programs from their files, and compares them between the modes."""

import fnmatch
import os


class Result:
    """The result of one case in one mode: its lines, or the reason why there are none."""

    def __init__(self):
        self.lines = {}     # key: value; these are compared
        self.note = ""      # the message of an error; not compared
        self.ended = False
        self.lost = ""      # "crashed: signal 11" or "hung", from the harness, for a case that did not end


class Outcome:
    """The results of one program in one mode: its cases, and the lines about its process."""

    def __init__(self):
        self.cases = {}
        self.process = {}   # the `!` lines: driver, devices, missing, finished
        self.last = None    # the case that began last, unless it has ended


def read_lines(path, outcome=None):
    """Reads a file of lines, which may be unfinished. Adds them to `outcome`, or to a new Outcome."""
    outcome = outcome or Outcome()
    if not os.path.exists(path):
        return outcome
    with open(path, errors="replace") as file:
        current = None
        for line in file:
            if not line.endswith("\n"):
                break  # the process was killed while it wrote the line
            line = line[:-1]
            if line.startswith("> "):
                current = outcome.last = line[2:]
                outcome.cases.setdefault(current, Result())
            elif line.startswith("< "):
                outcome.cases[line[2:]].ended = True
                outcome.last = None
            elif line.startswith("# "):
                if current:
                    outcome.cases[current].note = line[2:]
            elif line.startswith("! "):
                key, _, value = line[2:].partition(": ")
                values = outcome.process.setdefault(key, [])
                if value not in values:
                    values.append(value)
            elif line.startswith("~ "):  # a line of the harness: ~ case: how it ended
                name, _, what = line[2:].partition(": ")
                result = outcome.cases.setdefault(name, Result())
                if not result.ended:
                    result.lost = what
            elif "\t" in line:
                name, _, rest = line.partition("\t")
                key, _, value = rest.partition(": ")
                outcome.cases.setdefault(name, Result()).lines[key] = value
    return outcome


class KnownDifferences:
    """known_differences.txt: `PROGRAM/CASE/KEY | modes | reason | plan`, with wildcards as in a shell."""

    def __init__(self, path):
        self.entries = []
        with open(path) as file:
            for number, line in enumerate(file, 1):
                line = line.strip()
                if not line or line.startswith("#"):
                    continue
                fields = [field.strip() for field in line.split("|")]
                if len(fields) != 4 or not all(fields):
                    raise SystemExit(f"{path}:{number}: must be PROGRAM/CASE/KEY | modes | reason | plan")
                self.entries.append((fields[0], fields[1].split(), fields[2], fields[3]))

    def find(self, name, mode):
        for pattern, modes, reason, plan in self.entries:
            if mode in modes and fnmatch.fnmatchcase(name, pattern):
                return reason, plan
        return None


def differing_keys(native, remote):
    """The keys whose values differ; [None] if the case ended in one mode only, or in different ways."""
    if native.lost != remote.lost or native.ended != remote.ended:
        return [None]
    return sorted(key for key in {*native.lines, *remote.lines}
                  if native.lines.get(key) != remote.lines.get(key))


def state_of(result):
    """A short text about a native result."""
    if result is None:
        return "not run"
    if result.lost:
        return result.lost
    if not result.ended:
        return "not run"
    if "skipped" in result.lines:
        return "skipped: " + result.lines["skipped"]
    if "error" in result.lines:
        return "error: " + result.lines["error"]
    return "ok"


def _short(text, limit=70):
    text = str(text).replace("|", "/")
    return text if len(text) <= limit else text[:limit - 1] + "…"


def cause_of(native, remote, keys):
    """A text about the difference, for a cell of the table."""
    if keys[0] is None:
        return remote.lost or (f"natively {native.lost}" if native.lost else "did not end")
    if "error" in keys and "error" in remote.lines:
        return _short(f"error: {remote.lines['error']}: {remote.note}", 110)
    key = "error" if "error" in keys else keys[0]
    more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return _short(f"{key}: {remote.lines.get(key, 'no line')}, natively "
                  f"{native.lines.get(key, 'no line')}", 110) + more


class Verdict:
    """The outcome of the comparison for one case in one remote mode."""

    SAME, DIFFERS, KNOWN, VARIES, NOT_RUN = "same", "differs", "known", "varies natively", "not run"

    def __init__(self, kind, text=""):
        self.kind, self.text = kind, text or kind


def judge(name, mode, native, again, remote, known):
    """`name` is PROGRAM/CASE; `again` are results of further native runs, made because of a difference."""
    if native is None or (not native.ended and not native.lost):
        return Verdict(Verdict.NOT_RUN)
    if remote is None or (not remote.ended and not remote.lost):
        return Verdict(Verdict.NOT_RUN)
    keys = differing_keys(native, remote)
    if not keys:
        return Verdict(Verdict.SAME)
    varying = {key for other in again for key in differing_keys(native, other)}
    keys_left = [key for key in keys if key not in varying]
    if not keys_left:
        return Verdict(Verdict.VARIES)
    reasons = [known.find(f"{name}/{key or 'end'}", mode) for key in keys_left]
    if all(reasons):
        return Verdict(Verdict.KNOWN, f"known: {_short(reasons[0][0], 100)}")
    unknown = [key for key, reason in zip(keys_left, reasons) if not reason]
    return Verdict(Verdict.DIFFERS, cause_of(native, remote, unknown))
