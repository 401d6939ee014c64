#!/usr/bin/env python3
"""Measures peer copies with every strategy and natively, alternating, and draws the figures.

    bench/p2p/run.py --program build/release/bench/p2p/p2p --out results \\
        --native --remote 'RCUDA_DEVICES=node1:0,node2:0 LD_PRELOAD=/usr/lib/librcuda.so' \\
        --strategies v2b,v3b,v4b,hybrid,auto --paths shm,ipc

Rounds go through all variants in turn, so that a change in the machine's speed affects all alike. The
CSV contains the median of the rounds. --native adds native copies with peer access off and on.
--sockets build/release/bench/p2p/sockets adds plain TCP sockets on this host. The figures need
matplotlib and are left out without it.

With --exhaustive it measures instead how good the planner's choice is. Every chunk size and depth of a
grid is measured once on each of --paths. Then those that were best at some size are measured again,
in turn with the automatic choice. For each size, exhaustive.csv contains the best candidate and the
planner's time in relation to it. (The second measurement is needed because the smallest of many noisy
values is smaller than the true time of the best candidate.)

    bench/p2p/run.py --program ... --out results --remote '...' --exhaustive --paths shm,ipc,tcp \\
        --min 64K
"""
import argparse
import csv
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

FIELDS = ["first_us", "second_us", "median_us", "train_us"]


def variants(arguments):
    """(label, environment, command) of each variant."""
    result = []
    if arguments.native:
        for access in ("off", "on"):
            command = [arguments.program, "--peer-access", access]
            result.append((f"native peer access {access}", {}, command))
    if arguments.remote:
        for path in arguments.paths.split(","):
            for strategy in arguments.strategies.split(","):
                if path == "ipc" and strategy not in ("auto", "ipc"):
                    continue
                result.append((f"{strategy} {path}", of_remote(arguments, path, strategy),
                               [arguments.program]))
    if arguments.sockets:
        result.append(("sockets", {}, [arguments.sockets]))
        result.append(("sockets walking", {}, [arguments.sockets, "--walk", "32M"]))
    return result


def measure(arguments, label, environment, command):
    options = ["--label", label, "--no-header", "--min", arguments.min, "--max", arguments.max,
               "--seconds", str(arguments.seconds)]
    if arguments.settle and command[0] != arguments.sockets:
        options += ["--settle", str(arguments.settle)]
    done = subprocess.run([*command, *options], env={**os.environ, **environment},
                          capture_output=True, text=True, timeout=arguments.timeout)
    if done.returncode != 0:
        print(f"{label}: {done.stderr.strip()}", file=sys.stderr)
        return []
    rows = []
    for line in csv.reader(done.stdout.splitlines()):
        if len(line) == len(FIELDS) + 4 and line[0] == label:
            times = map(float, line[2:2 + len(FIELDS)])
            rows.append((int(line[1]), dict(zip(FIELDS, times))))
    return rows


def of_remote(arguments, path, strategy):
    return dict(word.split("=", 1) for word in shlex.split(arguments.remote)) | {
        "RCUDA_P2P_PATH": path, "RCUDA_P2P_STRATEGY": strategy}


def grid_of(arguments, path):
    """All distinct strategies. v2 and v3 are v4 with certain chunk sizes and depths."""
    if path == "ipc":
        return ["ipc"]
    staged = ["v4b", "v4a"] if path == "verbs" else ["v4b"]
    grid = [f"{strategy}:{chunk}x{depth}" for strategy in staged
            for chunk in arguments.grid_chunks.split(",") for depth in arguments.grid_depths.split(",")]
    return grid + {"verbs": ["v1"], "auto": ["ipc"]}.get(path, [])


def search(arguments, path):
    """[(size, best candidate, its median in us, the planner's median in us)]"""
    def times(strategy):
        label = f"{strategy} {path}"
        rows = measure(arguments, label, of_remote(arguments, path, strategy),
                       [arguments.program])
        return {size: values["median_us"] for size, values in rows}

    once = {strategy: times(strategy) for strategy in grid_of(arguments, path)}
    finalists = set()
    for size in {size for row in once.values() for size in row}:
        ranked = sorted((row[size], strategy) for strategy, row in once.items() if size in row)
        finalists.update(strategy for _, strategy in ranked[:arguments.finalists])
    samples = {}
    for _ in range(arguments.rounds):
        for strategy in ["auto", *sorted(finalists)]:
            for size, us in times(strategy).items():
                samples.setdefault(size, {}).setdefault(strategy, []).append(us)
    result = []
    for size, by_strategy in sorted(samples.items()):
        medians = {strategy: statistics.median(all_us) for strategy, all_us in by_strategy.items()}
        planner_us = medians.pop("auto", None)
        if planner_us is None or not medians:
            sys.exit(f"{path}: nothing to compare at {size} bytes")
        best = min(medians, key=medians.get)
        result.append((size, best, medians[best], planner_us))
    return result


def exhaustive(arguments):
    rows = [(path, *row) for path in arguments.paths.split(",") for row in search(arguments, path)]
    if not rows:
        sys.exit("nothing could be measured")
    with open(arguments.out / "exhaustive.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "bytes", "best", "best_us", "planner_us", "ratio"])
        for path, size, best, best_us, planner_us in rows:
            writer.writerow([path, size, best, f"{best_us:.2f}", f"{planner_us:.2f}",
                             f"{planner_us / best_us:.3f}"])
            print(f"{path:5} {size:>10} B  best {best:14} {best_us:10.1f} us  "
                  f"planner {planner_us:10.1f} us  {planner_us / best_us:.3f}")
    near = sum(planner_us <= 1.05 * best_us for *_, best_us, planner_us in rows)
    print(f"the planner is within 5 % of the best at {near} of {len(rows)} sizes")


def compare(table):
    """Prints copies between servers in relation to the same machine without servers."""
    references = {"shm": "native peer access off", "ipc": "native peer access on",
                  "tcp": "sockets walking"}
    for label in dict.fromkeys(label for label, _ in table):
        reference = references.get(label.split()[-1])
        sizes = [size for other, size in table if other == label and (reference, size) in table]
        if not sizes:
            continue
        print(f"{label}: bandwidth in relation to {reference}; first copy in relation to the second")
        for size in sizes:
            ours, theirs = table[label, size], table[reference, size]
            single, train = (theirs[field] / ours[field] for field in ("median_us", "train_us"))
            print(f"{size:>12} B  single {single:6.2f}  train {train:6.2f}"
                  f"  first {ours['first_us'] / ours['second_us']:6.2f}")


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
    parser.add_argument("--sockets", help="the program bench/p2p/sockets: measure it as well")
    parser.add_argument("--strategies", default="v1,v2a,v2b,v3a,v3b,v4a,v4b,hybrid,auto")
    parser.add_argument("--paths", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="per size")
    parser.add_argument("--settle", type=float, default=0,
                        help="seconds from a program's last allocation to its first copy")
    parser.add_argument("--min", default="4")
    parser.add_argument("--max", default="256M")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per run")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--grid-chunks", default="32K,64K,128K,256K,512K,1M,2M,4M,8M,16M")
    parser.add_argument("--grid-depths", default="1,2,3,4,8,16")
    parser.add_argument("--finalists", type=int, default=2, help="measured again, per size")
    arguments = parser.parse_args()
    if not (arguments.native or arguments.remote or arguments.sockets):
        parser.error("nothing to measure: --native, --remote, --sockets or several of them")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.exhaustive:
        if not arguments.remote:
            parser.error("--exhaustive is about the planner: it needs --remote")
        exhaustive(arguments)
        return

    samples = {}
    for _ in range(arguments.rounds):
        for label, environment, command in variants(arguments):
            for size, values in measure(arguments, label, environment, command):
                samples.setdefault((label, size), []).append(values)
    if not samples:
        sys.exit("nothing could be measured")
    table = {key: {field: statistics.median(row[field] for row in rows) for field in FIELDS}
             for key, rows in samples.items()}

    with open(arguments.out / "p2p.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "bytes", *FIELDS, "median_gbps", "train_gbps"])
        for (label, size), values in table.items():
            writer.writerow([label, size, *(f"{values[field]:.2f}" for field in FIELDS),
                             f"{size / values['median_us'] * 1e-3:.4f}",
                             f"{size / values['train_us'] * 1e-3:.4f}"])
    compare(table)
    draw(arguments.out / "bandwidth.png", table, "median_us", "GB/s", largest=2**40, smallest=4096)
    draw(arguments.out / "latency.png", table, "median_us", "us", largest=200_000)


if __name__ == "__main__":
    main()
