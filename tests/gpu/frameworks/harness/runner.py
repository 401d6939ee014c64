"""Runs tasks, several at the same time, each in its own process group, within limits of time."""

import os
import signal
import subprocess
import time

RESTARTS = 25


class Task:
    """What one process runs: a program, some of its cases or a shard, in one mode."""

    def __init__(self, program, mode, cases=(), shard=None, suffix=""):
        self.program, self.mode, self.cases, self.shard = program, mode, list(cases), shard
        part = f".{shard[0]}" if shard else "." + "+".join(self.cases) if program.apart else ""
        self.label = f"{program.name}{part}{suffix}.{mode}"
        self.process = None
        self.starts = 0
        self.seen = (0, 0.0)    # size of the file of lines, and when the file last grew
        self.state = "not run"  # later: running, finished, stopped (out of time)

    def lines_path(self, out):
        return os.path.join(out, "lines", self.label + ".lines")

    def arguments(self, out, options):
        arguments = [self.program.path, "--lines", self.lines_path(out)]
        if self.shard:
            arguments += ["--shard", f"{self.shard[0]}/{self.shard[1]}", "--samples",
                          str(options.samples)]
        if len(self.cases) > 20:
            names = self.lines_path(out) + ".names"
            with open(names, "w") as file:
                file.write("\n".join(self.cases))
            return arguments + ["--names", names]
        return arguments + self.cases


class Runner:
    """`place(task, arguments)` gives the command and the environment of a task."""

    def __init__(self, out, options, place, deadline):
        self.out, self.options, self.place, self.deadline = out, options, place, deadline
        self.running = []

    def run(self, tasks):
        """Runs tasks until all are done or the budget is spent. Then stops the tasks that still run."""
        waiting = list(tasks)
        try:
            while waiting or self.running:
                if time.monotonic() > self.deadline:
                    break
                while waiting and len(self.running) < self.options.jobs:
                    self._start(waiting.pop(0))
                time.sleep(0.1)
                for task in list(self.running):
                    self._look_after(task)
        finally:
            for task in self.running:
                self._kill(task)
                task.state = "stopped"
            self.running = []

    def _start(self, task):
        command, environment = self.place(task, task.arguments(self.out, self.options))
        folder = os.path.join(self.out, "work", task.label)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(self.out, "logs", task.label + ".log"), "a") as log:
            task.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log,
                                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            start_new_session=True)
        task.starts += 1
        task.state = "running"
        task.seen = (self._size(task), time.monotonic())
        self.running.append(task)

    def _size(self, task):
        try:
            return os.path.getsize(task.lines_path(self.out))
        except OSError:
            return 0

    def _look_after(self, task):
        status = task.process.poll()
        size = self._size(task)
        if size != task.seen[0]:
            task.seen = (size, time.monotonic())
        hung = status is None and time.monotonic() - task.seen[1] > task.program.seconds
        if status is None and not hung:
            return
        self._kill(task)
        self.running.remove(task)
        # The case that has begun but not ended has ended the process. A new process continues with the next case.
        text = self._text(task)
        case = self._open_case(text)
        what = "hung" if hung else self._ending(status)
        if hung or status:
            finished = "! finished" in text
            if case or finished or status != 75:
                with open(task.lines_path(self.out), "a") as lines:
                    lines.write(f"~ {case or ('exit' if finished else 'start')}: {what}\n")
            if not finished and (case or status == 75) and task.starts <= RESTARTS:
                self._start(task)
                return
        task.state = "finished"

    def _text(self, task):
        try:
            with open(task.lines_path(self.out), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    @staticmethod
    def _open_case(text):
        begun = None
        for line in text.splitlines():
            if line.startswith("> "):
                begun = line[2:]
            elif line.startswith(("< ", "~ ")):
                begun = None
        return begun

    @staticmethod
    def _ending(status):
        # A signal is visible here also remotely, because rcuda-run executes the program in its own process.
        if status < 0:
            return f"crashed: {signal.Signals(-status).name}"
        return f"exit status {status}"

    def _kill(self, task):
        """Kills the task's process group, and waits for its leader."""
        try:
            os.killpg(task.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        task.process.wait()
