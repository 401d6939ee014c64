#!/usr/bin/env python3
"""Compares PyTorch programs over networks of several speeds with the same programs on the local GPU.

    applications.py --build FOLDER [--round-trips 0,50,200,1000,10000] [--rates 100,10,1] [--rounds 1]

Starts a server on this machine. Runs torch_applications.py natively, then through a proxy that adds each
round trip (microseconds; without a limit of the rate), then each rate (Gb/s; at the first round trip that
is not 0), all of it --rounds times in turn. Prints the median step in milliseconds, and in brackets its
ratio to native, above 1 where remote is faster.

A second table has, for each program, the least squares fit of  step = base + trips x round trip  over the
round trips: `trips` is how many round trips a step waits for. A step stays within 5 % of native if
trips x round trip <= 1.05 x native - base. The last column has the bytes of a step, from the additional time of a step
at the slowest rate.
Needs an NVIDIA GPU, PyTorch, and a few idle cores.
"""

import argparse
import os
import statistics
import subprocess
import sys

from network import HERE, Network

# The remote figures include the time that the loopback device and the proxy add.


def steps(environment, programs):
    """{program: milliseconds}, for the programs that ended."""
    with subprocess.Popen([sys.executable, os.path.join(HERE, "torch_applications.py"), *programs],
                          env=environment, stdout=subprocess.PIPE, text=True) as process:
        return {name: float(value) for name, value in (line.split() for line in process.stdout)}


def fit(points):
    """(slope, intercept) of the line through (x, y) points."""
    x, y = (statistics.mean(values) for values in zip(*points))
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return slope, y - slope * x


def measure(arguments, round_trips, rates, programs):
    """{(round trip, rate) or "native": {program: [milliseconds]}}."""
    network = Network(os.path.abspath(arguments.build), "nvidia")
    delay = next((r for r in round_trips if r), 0)
    cases = [(r, 0) for r in round_trips] + [(delay, rate) for rate in rates]
    samples = {case: {} for case in ["native", *cases]}
    try:
        for _ in range(arguments.rounds):
            for case in samples:
                environment = dict(os.environ) if case == "native" else dict(
                    network.environment(*case), CUDA_VISIBLE_DEVICES="0",
                    LD_PRELOAD=os.path.join(network.build, "lib/librcuda.so"))
                figures = steps(environment, programs)
                for name, value in figures.items():
                    samples[case].setdefault(name, []).append(value)
                print(f"{case}: {figures}", file=sys.stderr, flush=True)  # for a run that is interrupted
    finally:
        network.stop()
    return {case: {name: statistics.median(values) for name, values in figures.items()}
            for case, figures in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--round-trips", default="0,50,200,1000,10000")
    parser.add_argument("--rates", default="100,10,1")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--programs", default="decode,training,inference_1,inference_32")
    arguments = parser.parse_args()
    round_trips, rates = ([int(x) for x in text.split(",") if x]
                          for text in (arguments.round_trips, arguments.rates))
    programs = arguments.programs.split(",")
    figures = measure(arguments, round_trips, rates, programs)
    native = figures["native"]

    print("| round trip, us | rate, Gb/s |" + "".join(f" {name} |" for name in programs))
    print("|---|---|" + "---|" * len(programs))
    for case, values in figures.items():
        head = "native | |" if case == "native" else f"{case[0]} | {case[1] or ''} |"
        print(f"| {head}" + "".join(
            f" {values[name]:.2f} ({native[name] / values[name]:.2f}) |" if name in values else " failed |"
            for name in programs))

    print("\n| program | native, ms | base, ms | round trips a step | MB a step |\n|---|---|---|---|---|")
    for name in programs:
        points = [(r / 1e3, figures[r, 0][name]) for r in round_trips if name in figures[r, 0]]
        trips, base = fit(points) if len(points) > 1 else (float("nan"), float("nan"))
        row = f"| {name} | {native.get(name, float('nan')):.2f} | {base:.2f} | {trips:.2f} |"
        if rates:
            delay = next((r for r in round_trips if r), 0)
            slow = figures[delay, min(rates)].get(name, float("nan"))
            megabytes = (slow - figures[delay, 0].get(name, float("nan"))) * min(rates) / 8
            row += f" {megabytes:.2f} |"
        print(row)


if __name__ == "__main__":
    main()
