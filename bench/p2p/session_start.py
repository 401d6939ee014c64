#!/usr/bin/env python3
"""Measures how the start time of a session grows with its number of servers, on softgpu.

    bench/p2p/session_start.py --build build/release [--servers 1,2,4,8,16] [--gpus 4] [--rounds 3]
                               [--mode eager,lazy]

Prints medians: the program's own times (session_start.cu) and its total time. Needs, in the build folder,
bin/rcuda-server, lib/librcuda.so, softgpu/lib and bench/p2p/session_start (targets rcuda-server,
rcuda_client, softgpu_driver, bench_p2p).
"""
import argparse
import csv
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/e2e"))
from servers import Server, client_environment  # noqa: E402


def measure(arguments, servers, mode):
    environment = client_environment(arguments.build, servers, RCUDA_P2P=mode)
    environment["RCUDA_DEVICES"] = ",".join(server.address(gpu) for server in servers
                                            for gpu in range(arguments.gpus))
    begin = time.monotonic()
    done = subprocess.run([f"{arguments.build}/bench/p2p/session_start", str(arguments.gpus)],
                          env=environment, capture_output=True, text=True)
    life_ms = (time.monotonic() - begin) * 1e3
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    row = next(csv.DictReader(done.stdout.splitlines()))
    return {**{name: float(value) for name, value in row.items()}, "life_ms": life_ms}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--servers", default="1,2,4,8,16")
    parser.add_argument("--gpus", type=int, default=4, help="per server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", default="eager,lazy")
    arguments = parser.parse_args()
    arguments.build = str(pathlib.Path(arguments.build).resolve())
    print("mode,servers,first_call_ms,all_devices_ms,first_copy_ms,second_copy_ms,pairs_ms,life_ms")
    for count in map(int, arguments.servers.split(",")):
        for mode in arguments.mode.split(","):
            rows = []
            for _ in range(arguments.rounds):
                # Fresh servers: no measurements exist, and no worker has been used.
                servers = [Server(arguments.build, index=index,
                                  environment={"SOFTGPU_DEVICES": str(arguments.gpus),
                                               "SOFTGPU_MEMORY": "2G"})
                           for index in range(count)]
                try:
                    rows.append(measure(arguments, servers, mode))
                finally:
                    for server in servers:
                        server.stop()
            median = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            print(f"{mode},{count}," + ",".join(
                f"{median[name]:.1f}" for name in ("first_call_ms", "all_devices_ms",
                                                   "first_copy_ms", "second_copy_ms", "pairs_ms",
                                                   "life_ms")), flush=True)


if __name__ == "__main__":
    main()
