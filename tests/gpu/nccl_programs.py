#!/usr/bin/env python3
"""Runs the programs of tests/programs/nccl on NVIDIA's NCCL, through one server with two GPUs and through two servers with one
GPU each.

    nccl_programs.py --build FOLDER [--nccl LIBRARY] [--only WORDS] [--at-once 4]

The programs check results, captures, lifetimes of communicators, and the errors that the other ranks get when a rank dies. The
tests on softgpu run them with a strict library (tests/support/nccl); this script shows that NVIDIA's library behaves in the
same way. Leaves out cases that only the strict library refuses, and cases that hang natively. Prints a table, and the output
of each program that fails. Exits with 1 if a program fails. NVLink multicast is off everywhere.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import time

from nccl import library_of_pytorch, NO_MULTICAST

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = "2"
SECONDS = 100
RUNS = [(name, arrangement) for name in ("collectives", "captured", "communicators")
        for arrangement in ("all", "threads", "processes")]
RUNS += [("failures", way, case) for way in ("threads", "processes")
         for case in ("aborted_first_operation", "aborted_operation", "bad_arguments", "ended", "same_device")]
RUNS += [("failures", "processes", case)
         for case in ("destroyed", "died_before_split", "died_in_shrink", "killed", "survived", "survived_in_call")]
WAYS = {"natively": (),
        "one server": ("--gpus", "2", "--transport", "shm"),
        "two servers": ("--servers", "2", "--devices", "0,1", "--transport", "tcp")}

# Ways, the cases that do not run in them, and what the table says instead. In these ways, the cases do not have the expected
# outcome, because of NVIDIA's library or of the arrangement of the servers.
LEFT_OUT = (
    # A daemon knows only the ranks of its own workers. NCCL notices the end of a rank only in an operation over a network.
    (("two servers",), ("destroyed", "died_in_shrink", "survived"), "not noticed"),
    (("natively",), ("destroyed", "died_before_split", "died_in_shrink", "killed", "survived", "survived_in_call"), "not noticed"),
    # After an error of the network, NCCL 2.28.9 returns ncclRemoteError from ncclCommShrink.
    (("two servers",), ("survived_in_call",), "no shrink"),
    # NCCL 2.28.9 enables peer access while the other thread captures a stream, and does not notice the use of a communicator
    # that another thread has ended.
    (("natively",), (("captured", "threads"), ("failures", "threads", "ended")), "differs natively"),
    # The threads of one process free memory while kernels of other ranks wait for them.
    (("natively", "one server"), (("communicators", "threads"),), "hangs natively"),
)


def run(build, environment, way, words):
    """The cell of the table, and the output if the program fails."""
    for ways, cases, why in LEFT_OUT:
        if way in ways and (words in cases or words[-1] in cases):
            return why, ""
    program, arrangement, *case = words
    command = ["timeout", "-k", "5", str(SECONDS)]
    if way == "natively":
        environment = dict(environment, LD_LIBRARY_PATH=os.path.dirname(environment["RCUDA_SERVER_NCCL"]))
    else:
        command += [sys.executable, os.path.join(HERE, "../e2e/with_servers.py"), "--build", build, "--driver", "nvidia",
                    *WAYS[way], "--"]
    command += [os.path.join(build, "tests/programs/nccl", program), arrangement, RANKS, *case]
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    right, output = done.returncode == 0 and "as expected" in done.stdout, done.stdout
    if done.returncode == 124:
        output += f"no end within {SECONDS} s\n"
    return f"{'as expected' if right else 'DIFFERS'}, {time.monotonic() - begin:.0f} s", "" if right else output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--nccl")
    parser.add_argument("--only", default="", help="only runs with one of these words, which are separated by commas")
    parser.add_argument("--at-once", type=int, default=4)
    arguments = parser.parse_args()
    environment = dict(os.environ, **NO_MULTICAST, LD_LIBRARY_PATH=os.path.join(arguments.build, "lib/rcuda"),
                       RCUDA_SERVER_NCCL=arguments.nccl or library_of_pytorch(), NCCL_SOCKET_IFNAME="lo", RCUDA_NCCL="server")
    wanted = [word for word in arguments.only.split(",") if word]
    runs = [words for words in RUNS if not wanted or any(word in words for word in wanted)]
    with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
        cells = {(way, words): pool.submit(run, arguments.build, environment, way, words) for words in runs for way in WAYS}
        print("| program | " + " | ".join(WAYS) + " |\n|" + "---|" * (1 + len(WAYS)))
        for words in runs:
            print(f"| {' '.join(words)} | " + " | ".join(cells[way, words].result()[0] for way in WAYS) + " |", flush=True)
    outputs = {key: cell.result()[1] for key, cell in cells.items() if cell.result()[1]}
    for (way, words), output in outputs.items():
        print(f"\n=== {' '.join(words)}, {way}\n{output[:1500]}\n...\n{output[-1500:]}")
    sys.exit(bool(outputs))


if __name__ == "__main__":
    main()
