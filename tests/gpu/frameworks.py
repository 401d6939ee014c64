#!/usr/bin/env python3
"""Runs CUDA frameworks natively and remotely on a real GPU and compares what they compute.

    tests/gpu/frameworks.py BUILD_FOLDER [--out DIR] [--budget SECONDS] [--only PATTERN] ...

The programs are in tests/gpu/frameworks. They use PyTorch, JAX, CuPy, numba, Triton, ONNX Runtime and
cuda-python, as far as this Python has these packages. Each program runs natively, then through rcuda-server
over shared memory and over TCP. Remote programs run in a mount namespace without device files and driver
libraries (frameworks/hide_gpu.py), so they can reach a GPU only through the server; this needs root. The
lines of a case must be equal in all modes. If a case differs, it runs natively twice more, and keys that
differ between native runs do not count.

Prints a table. Exits with 1 if there is a difference that frameworks/known_differences.txt does not list,
and with 3 if something did not run. BUILD_FOLDER needs the targets rcuda_client, rcuda-server, rcuda-run and
rcuda-smi.
"""

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "frameworks"))

from harness import places, results, table  # noqa: E402
from harness.catalogue import PROGRAMS  # noqa: E402
from harness.results import Outcome, Result, Verdict  # noqa: E402
from harness.runner import Runner, Task  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", help="the build folder")
    parser.add_argument("--out", help="folder for lines and logs (default: a temporary one)")
    parser.add_argument("--modes", default=os.environ.get("MODES", "native shm tcp"),
                        help="native, shm, tcp or several of them; results of other modes are read "
                             "from --out if an earlier run has left them there")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for everything")
    parser.add_argument("--only", action="append", default=[],
                        help="PROGRAM or PROGRAM/CASE, with wildcards as in a shell; may be repeated")
    parser.add_argument("--not", dest="without", action="append", default=[], help="does not run these programs or cases")
    parser.add_argument("--jobs", type=int, default=max(2, (os.cpu_count() or 2) * 3 // 4),
                        help="processes at once")
    parser.add_argument("--shards", type=int, help="processes of the operator database in each mode")
    parser.add_argument("--samples", type=int, default=8,
                        help="inputs of each operator and type, chosen evenly from all; 0: all")
    parser.add_argument("--markdown", help="writes the page, as docs/compatibility.md")
    parser.add_argument("--driver", default=os.environ.get("RCUDA_DRIVER", "nvidia"),
                        help="driver of the server: nvidia, or softgpu to try the scripts without a GPU")
    parser.add_argument("--without-namespace", action="store_true",
                        help="runs remote programs although they could reach this machine's GPU")
    return parser.parse_args()


class Run:
    def __init__(self, options):
        self.options = options
        self.modes = [mode for mode in ("native", "shm", "tcp") if mode in options.modes.split()]
        self.build = os.path.abspath(options.build)
        self.out = os.path.abspath(options.out or tempfile.mkdtemp(prefix="frameworks."))
        for folder in ("lines", "logs", "work"):
            os.makedirs(os.path.join(self.out, folder), exist_ok=True)
        self.began = time.monotonic()
        self.deadline = self.began + options.budget
        self.known = results.KnownDifferences(os.path.join(HERE, "frameworks/known_differences.txt"))
        self.tasks, self.server, self.left = [], None, None
        self.versions, self.isolation = [], ""

    # Which cases run.

    def selects(self, name):
        def any_of(patterns):
            return any(fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, pattern + "/*")
                       for pattern in patterns)
        return (not self.options.only or any_of(self.options.only)) and not any_of(self.options.without)

    def chosen(self, program):
        """The cases of a program to run; None: all cases of a program without named cases."""
        if program.shards:
            exact = [pattern.split("/", 1)[1] for pattern in self.options.only
                     if pattern.startswith(program.name + "/")]
            if exact:
                return exact
            return None if self.selects(program.name) else []
        return [name for name in program.cases() if self.selects(f"{program.name}/{name}")]

    def plan(self):
        tasks = []
        for program in PROGRAMS:
            cases = self.chosen(program)
            if cases == []:
                continue
            for mode in self.modes:
                if program.shards and cases is None:
                    shards = self.options.shards or program.shards
                    tasks += [Task(program, mode, shard=(i, shards)) for i in range(shards)]
                elif program.apart:
                    tasks += [Task(program, mode, [name]) for name in cases]
                else:
                    tasks.append(Task(program, mode, cases))
        # Shards come last, one mode after the other, so that some modes are complete if the budget runs out.
        return sorted(tasks, key=lambda task: (bool(task.shard), task.shard and self.modes.index(task.mode) or 0))

    # Running.

    def execute(self):
        for task_file in os.listdir(os.path.join(self.out, "lines")):
            if any(f".{mode}.lines" in task_file for mode in self.modes):
                os.unlink(os.path.join(self.out, "lines", task_file))
        self.tasks = self.plan()
        if not self.tasks:
            raise SystemExit("--only and --not leave no case to run; the cases are in tests/gpu/frameworks")
        place = places.Places(self.options, self.build, self.out)
        remote = [mode for mode in self.modes if mode != "native"]
        if remote:
            self.isolation = place.isolate()
            if self.isolation and not self.options.without_namespace:
                place.close()
                raise SystemExit(f"{self.isolation}\nRemote programs would see this machine's GPU. Run as "
                                     "root, or with --without-namespace.")
            place.server = self.server = places.Server(self.build, self.out, self.options.driver,
                                                       self.options.jobs)
        try:
            self.read_versions(place)
            runner = Runner(self.out, self.options, place, self.deadline)
            runner.run(self.tasks)
            self.run_again(runner)
            self.left = self.server.sessions_left() if self.server else 0
        finally:
            if self.server:
                self.server.stop()
            place.close()

    def run_again(self, runner):
        """Runs each case that differs twice more natively, to find the keys that differ between native runs."""
        if "native" not in self.modes:
            return
        tasks = []
        for program in PROGRAMS:
            names = [name for name, verdicts in self.compare(program).items()
                     if any(verdict.kind == Verdict.DIFFERS for verdict in verdicts.values())]
            names = [name for name in names if name not in ("exit", "start")]
            if names:
                tasks += [Task(program, f"native-again{i}", names, suffix=".again") for i in (1, 2)]
        if tasks:
            print(f"{len(tasks)} more native runs, for the cases that differ", flush=True)
            runner.run(tasks)

    def read_versions(self, place):
        task = Task(PROGRAMS[0], "native")
        task.label = "versions"
        command, environment = place(task, [os.path.join(HERE, "frameworks/versions.py")])
        os.makedirs(os.path.join(self.out, "work", task.label), exist_ok=True)
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.versions = [line.split(": ", 1) for line in told.stdout.splitlines() if ": " in line]
        commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"],
                                capture_output=True, text=True).stdout.strip()
        if commit:
            self.versions.append(["rcuda", commit])

    # Comparing.

    def outcome(self, program, mode):
        """The lines of a program in one mode, from all of its processes."""
        outcome = Outcome()
        folder = os.path.join(self.out, "lines")
        for name in sorted(os.listdir(folder)):
            parts = name.split(".")
            if parts[0] == program.name and name.endswith(f".{mode}.lines"):
                results.read_lines(os.path.join(folder, name), outcome)
        if ("finished" in outcome.process or "missing" in outcome.process):
            for name in ("exit", "start"):
                fine = outcome.cases.setdefault(name, Result())
                fine.ended = not fine.lost
        return outcome

    def compare(self, program):
        """{case: {mode: verdict}} of a program's remote modes, for each case that has begun in any mode."""
        native = self.outcome(program, "native")
        again = [self.outcome(program, f"native-again{i}") for i in (1, 2)]
        remote = {mode: self.outcome(program, mode) for mode in ("shm", "tcp") if mode in self.modes}
        names = list(native.cases)
        for outcome in remote.values():
            names += [name for name in outcome.cases if name not in names]
        return {name: {mode: results.judge(
                    f"{program.name}/{name}", mode, native.cases.get(name),
                    [other.cases[name] for other in again if name in other.cases],
                    outcome.cases.get(name), self.known)
                for mode, outcome in remote.items()} for name in dict.fromkeys(names)}

    def rows(self):
        """Returns the table's rows, the details of programs with too many cases for a table, the number of
        cases that differ, and the number of those that did not run."""
        rows, details, differ, not_run = [], [], 0, 0
        for program in PROGRAMS:
            cases = self.chosen(program)
            if cases == []:
                continue
            native, verdicts = self.outcome(program, "native"), self.compare(program)
            isolated = self.isolation_row(program)
            if isolated:
                rows.append(isolated)
                differ += any(cell not in ("as meant", "not run") for cell in isolated.cells.values())
            missing = native.process.get("missing")
            if program.shards and not missing:
                row, more = self.row_of_many(program, native, verdicts)
                rows.append(row)
                details += more
            else:
                for name in [*(cases or ["operators"]), "exit", "start"]:
                    row = self.row_of(program, name, native, verdicts.get(name, {}), missing)
                    if name not in ("exit", "start") or any(
                            "same" != cell != "not run" for mode, cell in row.cells.items()
                            if mode != "native"):
                        rows.append(row)
            if missing and not any(
                    self.outcome(program, mode).process.get("missing") != missing
                    for mode in self.modes):
                continue
            kinds = [verdict.kind for by_mode in verdicts.values() for verdict in by_mode.values()]
            differ += kinds.count(Verdict.DIFFERS)
            not_run += kinds.count(Verdict.NOT_RUN)
            not_run += sum(len(self.modes) for name in cases or () if name not in verdicts and not program.shards)
            not_run += sum(task.state != "finished" for task in self.tasks if task.program is program)
        return rows, details, differ, not_run

    def row_of(self, program, name, native, verdicts, missing):
        cells = {}
        for mode in self.modes:
            if mode == "native":
                cells[mode] = missing[0] if missing else results.state_of(native.cases.get(name))
            elif missing or self.outcome(program, mode).process.get("missing"):
                here = self.outcome(program, mode).process.get("missing")
                cells[mode] = "same" if here == missing else (here or ["natively " + missing[0]])[0]
            else:
                cells[mode] = verdicts[mode].text if mode in verdicts else "not run"
        return table.Row(program.framework, program.title(name), cells)

    def row_of_many(self, program, native, verdicts):
        """Returns one row for the whole operator database, and the entries that differ."""
        names = [name for name in verdicts if name not in ("exit", "start")]
        ends = [name for name in verdicts if name in ("exit", "start")]
        failing = [name for name in names if name in native.cases and native.cases[name].ended
                   and {"error", "raised"} & set(native.cases[name].lines)]
        cells, details = {}, []
        unfinished = {mode: sum(task.state != "finished" for task in self.tasks
                                if task.program is program and task.mode == mode) for mode in self.modes}
        for mode in self.modes:
            tail = f"; {unfinished[mode]} shards not finished" if unfinished[mode] else ""
            if mode == "native":
                count = sum(1 for name in names if name in native.cases)
                cells[mode] = (f"{count} entries, of which {len(failing)} raise for some input" if failing
                               else f"{count} entries") + tail
                cells[mode] = cells[mode] if count else "not run"
                continue
            counts = {}
            for name in names + ends:
                verdict = verdicts[name][mode]
                if name in ends and verdict.kind in (Verdict.SAME, Verdict.NOT_RUN):
                    continue
                counts[verdict.kind] = counts.get(verdict.kind, 0) + 1
                if verdict.kind not in (Verdict.SAME, Verdict.NOT_RUN):
                    details.append((name, mode, verdict.text))
            whole = set(counts) == {Verdict.SAME} and not tail
            cells[mode] = "same" if whole else (
                ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "not run") + tail
        return table.Row(program.framework, "operator database", cells), details

    def isolation_row(self, program):
        """A row about processes that did not use the intended driver; none if all processes did."""
        cells = {}
        for mode in self.modes:
            process = self.outcome(program, mode).process
            if "driver" in process:
                cells[mode] = places.proof(mode, process, self.build) or "as meant"
            else:
                cells[mode] = "not run"
        if all(cell in ("as meant", "not run") for cell in cells.values()):
            return None
        return table.Row(program.framework, f"{program.name}: driver", cells)

    def report(self):
        rows, details, differ, not_run = self.rows()
        for name, value in self.versions:
            print(f"{name} {value}", end=", ")
        print()
        print(table.text_table(rows, self.modes))
        for name, mode, text in details[:40]:
            print(f"  {mode} {name}: {text}")
        if len(details) > 40:
            print(f"  and {len(details) - 40} more, see {self.out}/details.txt")
        with open(os.path.join(self.out, "details.txt"), "w") as file:
            file.writelines(f"{mode} {name}: {text}\n" for name, mode, text in details)
        if self.options.markdown:
            table.write_markdown(self.options.markdown, rows, self.modes, self.versions, details,
                                 self.known)
        if self.isolation:
            print(f"The remote programs could reach this machine's GPU: {self.isolation}")
        if self.server:
            print(f"sessions left on the server: {self.left}")
        print(f"{differ} differ, {not_run} not run or not finished, "
              f"{time.monotonic() - self.began:.0f} s; logs in {self.out}")
        if differ or self.left not in (0, None):
            return 1
        return 3 if not_run else 0


def main():
    options = parse_arguments()
    run = Run(options)
    for tool in ("rcuda-server", "rcuda-run", "rcuda-smi"):
        if not shutil.which(os.path.join(run.build, "bin", tool)):
            raise SystemExit(f"{run.build}/bin/{tool} is not built")
    run.execute()
    status = run.report()
    if not options.out and not status:
        shutil.rmtree(run.out)
    return status


if __name__ == "__main__":
    sys.exit(main())
