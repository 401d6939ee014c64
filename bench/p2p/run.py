#!/usr/bin/env python3
"""Measures peer copies with every strategy and natively, alternating, and draws the figures.

    bench/p2p/run.py --program build/release/bench/p2p/p2p --out results \\
        --native --remote 'RCUDA_DEVICES=node1:0,node2:0 LD_PRELOAD=/usr/lib/librcuda.so' \\
        --strategies v2b,v3b,v4b,hybrid,auto --paths shm,ipc

Rounds go through all variants in turn, so that a change of the machine's mood hits all alike; the
CSV holds the median of the rounds. Natively (--native) with peer access off and on. The figures need
matplotlib and are left out without it.
"""
import argparse
import csv
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

FIELDS = ["first_us", "median_us", "train_us"]


def variants(arguments):
    """(label, environment, program arguments) of everything to be measured."""
    result = []
    if arguments.native:
        for access in ("off", "on"):
            result.append((f"native peer access {access}", {}, ["--peer-access", access]))
    if arguments.remote:
        remote = dict(word.split("=", 1) for word in shlex.split(arguments.remote))
        for path in arguments.paths.split(","):
            for strategy in arguments.strategies.split(","):
                if path == "ipc" and strategy not in ("auto", "ipc"):
                    continue
                environment = dict(remote, RCUDA_P2P_STRATEGY=strategy, RCUDA_P2P_PATH=path)
                result.append((f"{strategy} {path}", environment, []))
    return result


def measure(arguments, label, environment, options):
    command = [arguments.program, "--label", label, "--no-header", "--min", arguments.min, "--max",
               arguments.max, "--seconds", str(arguments.seconds), *options]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=arguments.timeout)
    if done.returncode != 0:
        print(f"{label}: {done.stderr.strip()}", file=sys.stderr)
        return []
    rows = []
    for line in csv.reader(done.stdout.splitlines()):
        if len(line) == 7 and line[0] == label:
            rows.append((int(line[1]), dict(zip(FIELDS, map(float, line[2:5])))))
    return rows


def draw(path, table, field, unit, largest, smallest=0):
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no matplotlib: no figures", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(figsize=(9, 6))
    for label in dict.fromkeys(label for label, _ in table):
        sizes = [size for other, size in table if other == label and smallest <= size <= largest]
        values = [table[label, size][field] for size in sizes]
        if unit == "GB/s":
            values = [size / us * 1e-3 for size, us in zip(sizes, values)]
        axes.plot(sizes, values, marker="o", markersize=3, label=label,
                  linestyle="--" if label.startswith("native") else "-")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("copy size in bytes")
    axes.set_ylabel(unit)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--remote", help="environment of the remote runs, as for env(1)")
    parser.add_argument("--strategies", default="v1,v2a,v2b,v3a,v3b,v4a,v4b,hybrid,auto")
    parser.add_argument("--paths", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="per size")
    parser.add_argument("--min", default="4")
    parser.add_argument("--max", default="256M")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per run")
    arguments = parser.parse_args()
    if not arguments.native and not arguments.remote:
        parser.error("nothing to measure: --native, --remote or both")

    samples = {}
    for _ in range(arguments.rounds):
        for label, environment, options in variants(arguments):
            for size, values in measure(arguments, label, environment, options):
                samples.setdefault((label, size), []).append(values)
    if not samples:
        sys.exit("nothing could be measured")
    table = {key: {field: statistics.median(row[field] for row in rows) for field in FIELDS}
             for key, rows in samples.items()}

    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "p2p.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "bytes", *FIELDS, "median_gbps", "train_gbps"])
        for (label, size), values in table.items():
            writer.writerow([label, size, *(f"{values[field]:.2f}" for field in FIELDS),
                             f"{size / values['median_us'] * 1e-3:.4f}",
                             f"{size / values['train_us'] * 1e-3:.4f}"])
    draw(arguments.out / "bandwidth.png", table, "median_us", "GB/s", largest=2**40, smallest=4096)
    draw(arguments.out / "latency.png", table, "median_us", "us", largest=200_000)


if __name__ == "__main__":
    main()
