#!/usr/bin/env python3
"""Starts servers and runs a program on them, with the client library preloaded.

    with_servers.py --build FOLDER [--transport shm|tcp] [--servers N] [--driver softgpu|nvidia]
                    [--gpus N] [--reversed] [--devices LIST] [--driver-versions LIST] [--preload LIBRARY] [--late]
                    [--server BINARY] [--cuts] [--parks [--stops N]]
                    -- PROGRAM [ARGUMENT...]

Starts N servers on free ports and runs PROGRAM with one device of each, or with as many as --gpus
says (with --reversed, in reverse order). Then stops the servers and exits with the program's code.
If a server does not stop cleanly, the run fails. If the run fails, the servers' logs are printed.
Each server is its own node; with --devices they share one node, and the n-th server has the n-th
device of LIST. --driver-versions: SOFTGPU_DRIVER_VERSION of each server. --late: server and client
also have the media of tests/support/late_media.h; the driver must then be a path. --server: another
binary, in the build folder. --cuts: over TCP, through a proxy that cuts connections at random.
--parks: stops PROGRAM at random, so that the servers park its sessions, and continues it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time

from cutting_proxy import CuttingProxy
from servers import Server, client_environment


LONGEST_STOP = 3  # the most seconds that PROGRAM is stopped before a session is parked for the first time


def run_with_stops(program, environment, servers, most_stops):
    """Stops the program repeatedly: each time until its sessions are parked, or for a moment if they are not parked. Returns
    the program's exit code. Returns 1 if no session was parked, although the program was stopped during a session and nothing
    permanent prevented a park."""
    process, stops, stood = subprocess.Popen(program, env=environment), 0, False
    said = lambda text: sum(server.text().count(text) for server in servers)
    parks = lambda: said(") is parked, ")
    lives = lambda: said(" over shm: ") + said(" over tcp: ") > said(") over after ")
    obstacles = lambda: said(") is not parked: ") - said("work in progress") - said("a stream is in capture")
    while process.poll() is None:
        time.sleep(random.uniform(0, 0.04) if stops else 0.001)
        if stops == most_stops or not lives():
            continue
        stops += 1
        before, until = parks(), time.monotonic() + (0.4 if parks() or obstacles() else LONGEST_STOP)
        process.send_signal(signal.SIGSTOP)
        while lives() and parks() == before and time.monotonic() < until and (before or not obstacles()):
            time.sleep(0.01)
        stood = stood or lives()
        process.send_signal(signal.SIGCONT)
    print(f"{stops} stops, {parks()} parks", file=sys.stderr)
    if not parks():
        print("\n".join({line for server in servers for line in server.text().splitlines() if "is not parked" in line}), file=sys.stderr)
    if stood and not parks() and not obstacles():
        print("no session was parked", file=sys.stderr)
        return process.returncode or 1
    return process.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--driver", default="softgpu")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--reversed", action="store_true")
    parser.add_argument("--devices", default="")
    parser.add_argument("--driver-versions", default="")
    parser.add_argument("--preload", default="", help="a sanitizer's runtime, before librcuda.so")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--server", default="bin/rcuda-server", help="in the build folder")
    parser.add_argument("--cuts", action="store_true")
    parser.add_argument("--parks", action="store_true")
    parser.add_argument("--stops", type=int, default=6, help="with --parks, the most times that PROGRAM is stopped")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    build = os.path.abspath(arguments.build)

    gpus = arguments.devices.split(",") if arguments.devices else ["0"] * arguments.servers
    node = {"SOFTGPU_DEVICES": str(arguments.gpus)}
    if arguments.devices:
        node = {"SOFTGPU_NODE": "shared", "SOFTGPU_DEVICES": str(1 + max(map(int, gpus)))}
    if arguments.parks:
        node["RCUDA_SERVER_PARK_AFTER"] = os.environ.get("RCUDA_SERVER_PARK_AFTER", "1ms")
    nodes = [dict(node) for _ in range(arguments.servers)]
    for each, version in zip(nodes, filter(None, arguments.driver_versions.split(","))):
        each["SOFTGPU_DRIVER_VERSION"] = version
    binary, library = (("tests/e2e/rcuda-server-delayed", "tests/e2e/librcuda-delayed.so")
                       if arguments.late else (arguments.server, "lib/librcuda.so"))
    # No idle workers: each of hundreds of tests would start one and not use it. Other tests have pools.
    servers = [Server(build, arguments.driver, arguments.devices and gpus[i], i, ["--pool", "0"],
                      environment=nodes[i], binary=binary)
               for i in range(arguments.servers)]
    environment = client_environment(build, servers, arguments.transport, library,
                                     arguments.preload)
    reached = servers
    if arguments.cuts:
        reached = [CuttingProxy(server.port) for server in servers]
        # Losses of connections are reported as warnings, which are not wanted here.
        environment.update(RCUDA_TRANSPORT="tcp", RCUDA_SECURITY="none", RCUDA_RECONNECT="60s", RCUDA_LOG="error")
    environment["RCUDA_DEVICES"] = ",".join(server.address(gpu) for i, server in enumerate(reached)
                                            for gpu in ([gpus[i]] if arguments.devices
                                                        else range(arguments.gpus)[::-1 if arguments.reversed else 1]))
    try:
        code = (run_with_stops(program, environment, servers, arguments.stops) if arguments.parks
                else subprocess.run(program, env=environment).returncode)
    except OSError as error:
        print(error, file=sys.stderr)
        code = 127
    for server in servers:
        outcome = server.stop()
        if outcome != 0:
            print(f"rcuda-server: {outcome}", file=sys.stderr)
            code = code or 1
        if code:
            print(server.text(), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
