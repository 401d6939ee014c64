#!/usr/bin/env python3
"""Counts the system calls of an operation over TCP, with and without RCUDA_RECONNECT.

    system_calls.py --build FOLDER [--operations 200] [--rounds 3]

Each round runs every operation --operations times and twice as often, with client and server under strace. The difference
of the counts, divided by --operations, is the cost of an operation. The table shows medians: calls that send, calls that
receive, poll, and futex, with which threads sleep and wake each other. strace slows both processes down, so threads sleep
more often than without it; compare the two columns of a row. Runs on softgpu, and needs strace.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import Server, client_environment, eventually  # noqa: E402

GROUPS = {"send": ("sendmsg", "sendto", "write", "writev"), "receive": ("recvfrom", "recvmsg", "read"),
          "poll": ("poll", "ppoll"), "futex": ("futex",)}
OPERATIONS = ("memset and wait", "64 KiB to the device", "64 KiB from the device", "1 MiB to the device",
              "1 MiB from the device", "1 MiB page-locked to the device", "1 MiB page-locked from the device")


def client(operation, count):
    """Runs an operation `count` times."""
    driver = ctypes.CDLL("libcuda.so.1")

    def check(name, *arguments):
        result = getattr(driver, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} gave {result}")
    check("cuInit", 0)
    context = ctypes.c_void_p()
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    check("cuCtxSetCurrent", context)
    size = ctypes.c_size_t(64 << 10 if "64 KiB" in operation else 1 << 20)
    device = ctypes.c_uint64()
    check("cuMemAlloc_v2", ctypes.byref(device), size)
    host = ctypes.c_void_p()
    if "page-locked" in operation:
        check("cuMemAllocHost_v2", ctypes.byref(host), size)
    else:
        memory = ctypes.create_string_buffer(size.value)
        host = ctypes.cast(memory, ctypes.c_void_p)
    for _ in range(count):
        if operation == OPERATIONS[0]:
            check("cuMemsetD8_v2", device, 1, ctypes.c_size_t(64))
            check("cuCtxSynchronize")
        elif operation.endswith("to the device"):
            check("cuMemcpyHtoD_v2", device, host, size)
            check("cuCtxSynchronize")
        else:
            check("cuMemcpyDtoH_v2", host, device, size)


def counts(path):
    """{group: calls} of strace's summary."""
    result = dict.fromkeys(GROUPS, 0)
    with open(path) as file:
        for line in file:
            words = line.split()
            for group, names in GROUPS.items():
                if words and words[-1] in names:
                    result[group] += int(words[3])
    return result


def strace(path):
    return ["strace", "-D", "-f", "-c", "-o", path]  # -D: the process is the program, not strace


def run(build, reconnect, operation, count):
    """The system calls of client and server together."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, side) for side in ("server", "client")]
        server = Server(build, wrapper=strace(paths[0]))
        environment = client_environment(build, [server], "tcp", RCUDA_RECONNECT=reconnect)
        subprocess.run([*strace(paths[1]), sys.executable, __file__, "--client", operation, "--operations", str(count)],
                       env=environment, check=True)
        server.stop()
        # strace writes after the programs have ended.
        assert eventually(lambda: all(os.path.exists(path) and os.path.getsize(path) for path in paths))
        of_sides = [counts(path) for path in paths]
    return {group: sum(each[group] for each in of_sides) for group in GROUPS}


def per_operation(build, reconnect, operation, count):
    few, many = (run(build, reconnect, operation, times * count) for times in (1, 2))
    return {group: (many[group] - few[group]) / count for group in GROUPS}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--operations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        return client(arguments.client, arguments.operations)
    print(f"| {'operation':33} | {'calls':8} | {'tcp':>8} | {'reconnecting':>12} |\n|---|---|---|---|")
    for operation in OPERATIONS:
        rounds = {reconnect: [per_operation(os.path.abspath(arguments.build), reconnect, operation, arguments.operations)
                              for _ in range(arguments.rounds)] for reconnect in ("0", "1m")}
        for group in GROUPS:
            tcp, reconnecting = (statistics.median(each[group] for each in rounds[which]) for which in ("0", "1m"))
            print(f"| {operation:33} | {group:8} | {tcp:8.2f} | {reconnecting:12.2f} |", flush=True)


if __name__ == "__main__":
    main()
