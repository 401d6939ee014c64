#!/usr/bin/env python3
"""Runs libraries that load NCCL by themselves, natively and through servers, on two GPUs.

    nccl_loaders.py --build FOLDER [--vllm FOLDER] [--only NAMES] [--transport tcp]

The programs are in tests/gpu/nccl_loaders. JAX and vLLM open libnccl.so.2 by its name; CuPy links it. JAX runs once with one
process and once with a process for each rank. --vllm names an unpacked source package of vLLM (PyPI): the program uses only
its communicator, so vLLM itself need not be built. A library that this Python lacks is left out.

Each program runs natively, on one server with two GPUs, and on two servers with a GPU each. It checks its sums and prints
them; all runs must print the same. For remote runs, the log must show that the servers' NCCL was used. Prints a table, and
the output of runs that fail. Exits with 1 if a run fails. NVLink multicast is off everywhere.
"""

import argparse
import importlib.util
import os
import socket
import subprocess
import sys

from nccl import library_of_pytorch, NO_MULTICAST

HERE = os.path.dirname(os.path.abspath(__file__))
# Each: the Python module (for vLLM: --vllm), the program, the number of processes.
PROGRAMS = (("jax", "jax_sums.py", 1), ("jax", "jax_sums.py", 2), ("vllm", "vllm_sums.py", 2), ("cupy", "cupy_sums.py", 2))
# The options of with_servers.py for each way to run a program.
WAYS = {"natively": (), "one server": ("--gpus", "2"), "two servers": ("--servers", "2", "--devices", "0,1")}
# Runs that are left out, with the text for the table. XLA refuses collectives of one process whose GPUs have no peer access: "Peer
# access is not supported from device 0 to device 1".
LEFT_OUT = {("jax", 1, "two servers"): "no peer access"}
SECONDS = 100
USES_SERVERS = "NCCL runs on the servers"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def run(arguments, way, program, processes):
    """Returns the printed sums, or None and the output of the failure."""
    environment = dict(os.environ, **NO_MULTICAST, RCUDA_SERVER_NCCL=library_of_pytorch(), RCUDA_NCCL="server", RCUDA_LOG="info",
                       NCCL_SOCKET_IFNAME="lo", PORT=free_port(), XLA_PYTHON_CLIENT_PREALLOCATE="false")
    # One command for all ranks, because with_servers.py runs one program.
    command = [sys.executable, os.path.join(HERE, "nccl_loaders/ranks.py"), str(processes), program, *arguments.vllm]
    if way == "natively":
        # For vLLM's communicator and CuPy. PyTorch and JAX find NCCL without this variable.
        folders = (os.path.dirname(library_of_pytorch()), os.environ.get("LD_LIBRARY_PATH"))
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    else:
        library = os.path.join(os.path.abspath(arguments.build), "lib/rcuda/libnccl.so.2")
        command = [sys.executable, os.path.join(HERE, "../e2e/with_servers.py"), "--build", arguments.build, "--driver", "nvidia",
                   "--transport", arguments.transport, *WAYS[way], "--", "env", f"PRELOADED={library}", *command]
    done = subprocess.run(["timeout", "-k", "5", str(SECONDS), *command], env=environment, capture_output=True, text=True)
    sums = sorted(line for line in done.stdout.splitlines() if line.startswith("sum "))
    if done.returncode or not sums:
        return None, f"exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    if way != "natively" and USES_SERVERS not in done.stderr:
        return None, f"not the servers' NCCL\n{done.stderr[-6000:]}"
    return sums, ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--vllm", default=[], type=lambda folder: [os.path.abspath(folder)])
    parser.add_argument("--only", default="")
    parser.add_argument("--transport", default="tcp")
    arguments = parser.parse_args()
    print("| program | processes | " + " | ".join(WAYS) + " |\n|" + "---|" * (2 + len(WAYS)))
    failed, any_ran = False, False
    for name, program, processes in PROGRAMS:
        present = arguments.vllm if name == "vllm" else importlib.util.find_spec(name)
        if not present or (arguments.only and name not in arguments.only.split(",")):
            continue
        native, cells, failures, any_ran = None, [], [], True
        for way in WAYS:
            if (name, processes, way) in LEFT_OUT:
                cells.append(LEFT_OUT[name, processes, way])
                continue
            sums, output = run(arguments, way, os.path.join(HERE, "nccl_loaders", program), processes)
            if way == "natively":
                native = sums
            same = sums is not None and sums == native
            cells.append("equal" if same else "FAILS")
            if not same:
                failures.append(f"=== {name}, {processes} process(es), {way}\n{output or f'{sums} instead of {native}'}")
        print("\n".join([f"| {name} | {processes} | " + " | ".join(cells) + " |", *failures]), flush=True)
        failed = failed or bool(failures)
    if not any_ran:
        sys.exit("nothing ran: this Python has none of the libraries, or --only names none of them")
    sys.exit(failed)


if __name__ == "__main__":
    main()
