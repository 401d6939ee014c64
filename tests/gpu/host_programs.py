#!/usr/bin/env python3
"""Runs unusual host programs with a GPU: natively, over shared memory and over TCP. Their outputs must be equal.

    host_programs.py BUILD [--markdown FILE] [--only NAME ...] [--programs FOLDER] [--seconds N]

BUILD has the client, the server and tests/programs. --programs names a folder with more programs. A case is a program with
arguments, environment and limits. The output and the exit status of the native run are the reference. If native runs of a case
may differ, only crashes of its remote runs count. At the end, prints a table, and with --markdown writes it between the marks
in FILE. Needs an NVIDIA driver.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from servers import Server  # noqa: E402

MODES = "native", "shm", "tcp"
BEGIN, END = "<!-- made by tests/gpu/host_programs.py: begin -->", "<!-- made by tests/gpu/host_programs.py: end -->"
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class Case:
    def __init__(self, name, *arguments, program=None, shell="", times=1, compare=True, native=None, **environment):
        """`shell`: shell commands before the program starts. `compare`: False if native runs differ from each other.
        `native`: additional environment for native runs."""
        self.native = native or {}
        self.name, self.arguments, self.environment = name, arguments, environment
        self.program, self.shell, self.times, self.compare = program or name, shell, times, compare


CASES = [
    Case("odd_hosts"),
    Case("cancelled_threads"),
    Case("host_callbacks"),
    Case("registered_kinds"),
    Case("zero_sizes"),
    Case("before_init"),
    Case("odd_arguments"),
    Case("launch_blocking"),
    Case("driver_variables"),
    Case("redirected_printf"),
    Case("virtual_memory"),
    Case("small files", program="host_memory", shell="ulimit -f 1024"),
    Case("unlimited stack", program="host_memory", shell="ulimit -s unlimited"),
    Case("no standard descriptors", program="vector_add", shell="exec 0<&- 2>&-"),
    # Programs from the folders of --programs.
    Case("allround"),
    # NVIDIA's driver maps memory in AddressSanitizer's shadow gap, so natively the option is necessary; with rcuda-run it is
    # not.
    Case("asan_host", native={"ASAN_OPTIONS": "protect_shadow_gap=0"}),
    Case("buffer_id"),
    Case("fork_pinned"),
    Case("gpu_clusters"),
    Case("gpu_device_graph"),
    Case("gpu_device_launch"),
    Case("host_func_waits"),
    Case("io_uring_fixed"),
    Case("main_exits"),
    Case("main_exits late", "late", program="main_exits"),
    Case("many_registrations", "2000"),
    Case("module_env"),
    Case("module_env eager", program="module_env", CUDA_MODULE_LOADING="EAGER"),
    Case("shared_registered 0", "0", program="shared_registered"),
    Case("shared_registered 1", "1", program="shared_registered"),
    Case("shared_registered 2", "2", program="shared_registered"),
    Case("stdio_closed"),
    Case("symbols_found"),
    *(Case(f"exit_busy {how}", how, program="exit_busy", times=12, compare=False)
      for how in ("return", "exit", "thread", "_exit", "quick_exit")),
    *(Case(f"visible {text!r}", program="visible", CUDA_VISIBLE_DEVICES=text)
      for text in ("0", "0,0", "+0", "0x0", "0,,1", "", "-1", "4294967296", "GPU-")),
]
CRASHES = {-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE}


def without_times(text):
    """Returns the output of a program without its lines of times."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"# time", line))


class Runner:
    def __init__(self, build, folders, seconds):
        self.build, self.folders, self.seconds = build, folders, seconds
        self.server = Server(build, driver="nvidia", options=["--pool", "2"], environment=NO_MULTICAST)

    def path_of(self, case):
        paths = (os.path.join(folder, case.program) for folder in self.folders)
        return next((path for path in paths if os.access(path, os.X_OK)), None)

    def run(self, case, mode):
        """(exit status, output, errors) of one run."""
        environment = dict(os.environ, **NO_MULTICAST, **case.environment)
        command = [self.path_of(case), *case.arguments]
        if mode == "native":
            environment.update(case.native)
        else:
            environment.update(RCUDA_DEVICES=self.server.address(0), RCUDA_TRANSPORT=mode)
            command = [os.path.join(self.build, "bin/rcuda-run"), "--", *command]
        if case.shell:
            command = ["bash", "-c", f'{case.shell}; exec "$@"', "bash", *command]
        try:
            result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                    timeout=self.seconds)
            return result.returncode, without_times(result.stdout), result.stderr
        except subprocess.TimeoutExpired:
            return None, "", f"did not end within {self.seconds} s"


def judge(case, native, remote):
    """The entry of the table for the remote runs of a case."""
    crashed = sum(status in CRASHES or status is None for status, _, _ in remote)
    if not case.compare:
        of_native = sum(status in CRASHES or status is None for status, _, _ in native)
        return f"{crashed} of {len(remote)} crash, natively {of_native}", crashed == 0
    if native[0][0] is None:
        return "ends; natively it does not", all(run[0] == 0 for run in remote)
    same = all(run[:2] == native[0][:2] for run in remote)
    return ("same" if same else "**differs**"), same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--markdown")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--programs", action="append", default=[])
    parser.add_argument("--seconds", type=int, default=60)
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    folders = [os.path.join(build, "tests/programs"), *map(os.path.abspath, arguments.programs)]
    runner = Runner(build, folders, arguments.seconds)
    rows, good = [], True
    for case in CASES:
        if (arguments.only and case.name not in arguments.only) or not runner.path_of(case):
            continue
        runs = {mode: [runner.run(case, mode) for _ in range(case.times)] for mode in MODES}
        verdicts = {mode: judge(case, runs["native"], runs[mode]) for mode in MODES[1:]}
        rows.append(f"| `{case.name}` | {verdicts['shm'][0]} | {verdicts['tcp'][0]} |")
        for mode, (_, is_good) in verdicts.items():
            good = good and is_good
            if not is_good:
                with tempfile.NamedTemporaryFile("w") as wanted, tempfile.NamedTemporaryFile("w") as printed:
                    for file, (status, output, _) in ((wanted, runs["native"][0]), (printed, runs[mode][0])):
                        file.write(f"{output}\nexit {status}\n")
                        file.flush()
                    print(f"--- {case.name}, {mode}", flush=True)
                    subprocess.run(f"diff {wanted.name} {printed.name} | head -20", shell=True)
                print("\n".join(runs[mode][0][2].splitlines()[-4:]), flush=True)
    if outcome := runner.server.stop():
        print(f"rcuda-server: {outcome}\n{runner.server.text()}")
        good = False
    table = "\n".join(["| program | shm | TCP |", "|---|---|---|", *rows])
    print(table)
    if arguments.markdown:
        with open(arguments.markdown) as file:
            before, rest = file.read().split(BEGIN)
        with open(arguments.markdown, "w") as file:
            file.write(before + BEGIN + "\n\n" + table + "\n\n" + END + rest.split(END)[1])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
