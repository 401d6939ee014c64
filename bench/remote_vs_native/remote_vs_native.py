#!/usr/bin/env python3
"""Compares a local GPU with the same GPU behind rcuda, alternately in one run.

    remote_vs_native.py --build FOLDER [--rounds 3] [--torch-rounds 1] [--transports shm,tcp] [--device 0]

Starts an rcuda-server on this machine, runs bench/remote_vs_native/figures natively and over every
transport in turn, and prints the median of each figure and its ratio to native: above 1 is better than
native, for latencies as for bandwidths. Where PyTorch is installed, a small training loop as well.
Needs an NVIDIA GPU.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import Server  # noqa: E402


def measure(command, environment):
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        print(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr}", file=sys.stderr)
        return {}
    figures = {}
    for line in result.stdout.splitlines():
        name, value = line.split()
        figures[name] = float(value)
    return figures


def first_result(command, environment):
    start = time.perf_counter()
    result = subprocess.run(command, env=environment, capture_output=True)
    elapsed = time.perf_counter() - start
    return {"process_to_first_result_us": elapsed * 1e6} if result.returncode == 0 else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--torch-rounds", type=int,
                        default=1 if importlib.util.find_spec("torch") else 0)
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    figures_program = os.path.join(build, "bench/remote_vs_native/figures")

    server = Server(build, "nvidia", str(arguments.device), options=("--pool", "2"))
    modes = ["native"] + arguments.transports.split(",")
    environments = {"native": dict(os.environ, CUDA_VISIBLE_DEVICES=str(arguments.device))}
    for transport in modes[1:]:
        environments[transport] = dict(
            os.environ, RCUDA_DEVICES=f"127.0.0.1@{server.port}:{arguments.device}",
            RCUDA_TRANSPORT=transport, LD_PRELOAD=os.path.join(build, "lib/librcuda.so"))
    samples = {mode: {} for mode in modes}
    try:
        for round_number in range(arguments.rounds):
            for mode in modes:
                environment = environments[mode]
                figures = first_result([figures_program, "--first"], environment)
                figures.update(measure([figures_program], environment))
                if round_number < arguments.torch_rounds:
                    # PyTorch counts devices by NVML, which knows this machine's GPUs, not the pool.
                    seen = environment if mode == "native" else dict(environment, CUDA_VISIBLE_DEVICES="0")
                    figures.update(measure([sys.executable, os.path.join(HERE, "torch_loop.py")], seen))
                for name, value in figures.items():
                    samples[mode].setdefault(name, []).append(value)
    finally:
        outcome = server.stop()
        if outcome != 0:
            print(f"rcuda-server: {outcome}\n{server.text()}", file=sys.stderr)

    print(f"| {'figure':32} | {'native':>10} |" +
          "".join(f" {mode:>10} | {'ratio':>6} |" for mode in modes[1:]))
    print("|" + "-" * 34 + "|" + "-" * 12 + "|" + ("-" * 12 + "|" + "-" * 8 + "|") * (len(modes) - 1))
    for name, native in samples["native"].items():
        base = statistics.median(native)
        row = f"| {name:32} | {base:10.4g} |"
        for mode in modes[1:]:
            if name not in samples[mode]:
                row += f" {'failed':>10} | {'':6} |"
                continue
            value = statistics.median(samples[mode][name])
            ratio = value / base if name.endswith("gbps") else base / value
            row += f" {value:10.4g} | {ratio:6.2f} |"
        print(row)


if __name__ == "__main__":
    main()
