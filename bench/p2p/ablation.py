#!/usr/bin/env python3
"""Measures how much bandwidth the strategy `auto` loses if no leg is measured (EngineOptions::measure).

    bench/p2p/ablation.py --build build/release [--quick]
    bench/p2p/ablation.py --build build/release --driver nvidia       # two workers on one GPU

Needs python3 and, in the build folder, bench/p2p/engine_pair (target bench_engine_pair). On softgpu
it also needs softgpu/lib (softgpu_driver) and bench/p2p/simulated (bench_p2p_simulated; left out if
it is missing).

Links combine softgpu's link model (PCIe bandwidth and latency of each side) with shm, TCP, or TCP
with random delays. Passes: `start`, right after the session began; `settled`, when all legs are
measured; `loaded`, while the program copies in both directions of both buses during the peer copies.
Verbs and GPUDirect are simulated, with a simulated clock (bench/p2p/simulated.cpp).

Each round runs every variant of a case, in turn. `nothing` turns nothing off, so its loss is noise.
Figures are medians over rounds. A loss is lost bandwidth, in percent of the bandwidth with all
mechanisms. Its spread is half the range over rounds, or the largest loss of `nothing` in the same
cell, whichever is larger. The last lines show, for each mechanism, the worst loss, the worst loss
that is larger than its spread, and the mean over all cells.
"""
import argparse
import concurrent.futures
import csv
import os
import pathlib
import statistics
import subprocess
import sys
import time

MECHANISMS = ["nothing", "prober"]

# name: (environment of both processes, additional environment of the destination)
LINKS = {
    "fast": ({"SOFTGPU_PCIE_LATENCY_US": "5"}, {}),
    "slow": ({"SOFTGPU_PCIE_GBPS": "2", "SOFTGPU_PCIE_LATENCY_US": "10"}, {}),
    "asymmetric": ({"SOFTGPU_PCIE_GBPS": "8", "SOFTGPU_PCIE_LATENCY_US": "10"},
                   {"SOFTGPU_PCIE_GBPS": "1.5"}),
    "late": ({"SOFTGPU_PCIE_GBPS": "4", "SOFTGPU_PCIE_LATENCY_US": "150"}, {}),
}
CASES = [("fast", "shm"), ("fast", "tcp"), ("slow", "shm"), ("slow", "tcp"), ("asymmetric", "shm"),
         ("asymmetric", "tcp"), ("late", "shm"), ("slow", "late-tcp")]


class Case:
    def __init__(self, name, alone):
        self.name = name
        self.alone = alone  # no other case may run at the same time


def measure_option(mechanism):
    return ["--measure", "off" if mechanism == "prober" else "on"]


def run(command, environment):
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True,
                          text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-2000:]}")
    return list(csv.DictReader(done.stdout.splitlines()))


class Pair(Case):
    """Two workers without client and server."""

    def __init__(self, arguments, link, medium):
        super().__init__(f"{link} {medium}", arguments.driver != "softgpu" or link == "fast")
        self.arguments, self.link, self.medium = arguments, link, medium

    def measure(self, mechanism):
        arguments = self.arguments
        command = [arguments.build / "bench/p2p/engine_pair", "--driver", arguments.driver,
                   "--medium", self.medium, "--strategy", f"auto/{self.medium}",
                   "--seconds", arguments.seconds, "--sizes", arguments.sizes,
                   "--passes", arguments.passes, *measure_option(mechanism)]
        environment = dict(os.environ)
        if arguments.driver == "softgpu":
            both, destination = LINKS[self.link]
            libraries = [str(arguments.build / "softgpu/lib"), environment.get("LD_LIBRARY_PATH")]
            environment |= both | {"SOFTGPU_DEVICES": "2",
                                   "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
            for name, value in destination.items():
                command += ["--destination", f"{name}={value}"]
        else:
            command += ["--devices", arguments.devices]
        rows = run(command, environment)
        result = {}
        several = "," in arguments.passes
        for row in rows:
            stage = row["label"].split()[-1] if several else arguments.passes
            single = "mean_us" if stage == "start" else "last_us"
            result[stage, int(row["bytes"]), "single"] = float(row[single])
            result[stage, int(row["bytes"]), "train"] = float(row["train_us"])
        return result


class Simulated(Case):
    """Two engines in one process with a simulated clock, which the machine's load does not disturb."""

    def __init__(self, arguments, name):
        super().__init__(f"simulated {name}", False)
        self.arguments, self.link = arguments, name

    def measure(self, mechanism):
        rows = run([self.arguments.build / "bench/p2p/simulated", "--link", self.link, "--sizes",
                    self.arguments.sizes, *measure_option(mechanism)], dict(os.environ))
        return {(row["pass"], int(row["bytes"]), kind): float(row[f"{kind}_us"])
                for row in rows for kind in ("single", "train")}


def cases_of(arguments):
    if arguments.driver != "softgpu":
        return [Pair(arguments, "GPU", medium) for medium in ("shm", "tcp")]
    chosen = [("slow", "shm"), ("asymmetric", "tcp")] if arguments.quick else CASES
    cases = [Pair(arguments, *case) for case in chosen]
    simulated = arguments.build / "bench/p2p/simulated"
    if simulated.exists():
        names = subprocess.run([simulated, "--list"], capture_output=True, text=True,
                               check=True).stdout.split()
        cases += [Simulated(arguments, name) for name in names]
    return cases


def one_round(case):
    return {mechanism: case.measure(mechanism) for mechanism in ["all", *MECHANISMS]}


def measure_all(arguments, cases):
    """{case: [results of a round]}; makes further rounds as long as the time allows."""
    begin = time.monotonic()
    rounds = {case.name: [] for case in cases}
    groups = [([case for case in cases if not case.alone], arguments.jobs),
              ([case for case in cases if case.alone], 1)]
    longest = 0
    for number in range(arguments.rounds):
        started = time.monotonic()
        if number > 0 and started - begin + longest > arguments.budget:
            break
        for group, jobs in groups:
            # A simulated clock gives the same figures in every round.
            group = [case for case in group if number == 0 or not isinstance(case, Simulated)]
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                for case, result in zip(group, pool.map(one_round, group)):
                    rounds[case.name].append(result)
        longest = max(longest, time.monotonic() - started)
        print(f"round {number + 1}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return rounds


def text_of(size):
    return f"{size >> 20}M" if size >= 1 << 20 else f"{size >> 10}K"


def cells_of(rounds):
    """[(case, pass, size, kind, mechanism, GB/s with, GB/s without, loss in %, spread in %)]"""
    cells = []
    for case, results in rounds.items():
        for key in results[0]["all"]:
            chance = 0
            for mechanism in MECHANISMS:
                pairs = [(result["all"][key], result[mechanism][key]) for result in results]
                losses = [100 * (1 - with_us / without_us) for with_us, without_us in pairs]
                loss = statistics.median(losses)
                if mechanism == "nothing":
                    chance = max(map(abs, losses))
                spread = max((max(losses) - min(losses)) / 2, chance)
                with_us, without_us = (statistics.median(column) for column in zip(*pairs))
                stage, size, kind = key
                cells.append((case, stage, size, kind, mechanism, size / with_us * 1e-3,
                              size / without_us * 1e-3, loss, spread))
    return cells


def report(cells, out):
    if out:
        with open(out, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["case", "pass", "bytes", "kind", "without", "gbps_with",
                             "gbps_without", "loss_percent", "spread_percent"])
            for row in cells:
                writer.writerow([*row[:5], *(f"{value:.4f}" for value in row[5:])])
    print("| case | pass | without | mean loss | worst at | with | without | loss | spread |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case, stage, mechanism in dict.fromkeys((row[0], row[1], row[4]) for row in cells):
        mine = [row for row in cells if (row[0], row[1], row[4]) == (case, stage, mechanism)]
        mean = statistics.mean(row[7] for row in mine)
        worst = max(mine, key=lambda row: row[7])
        print(f"| {case} | {stage} | {mechanism} | {mean:.1f} % | {text_of(worst[2])} {worst[3]} | "
              f"{worst[5]:.3f} GB/s | {worst[6]:.3f} GB/s | {worst[7]:.1f} % | {worst[8]:.1f} % |")
    print()
    for mechanism in MECHANISMS:
        mine = [row for row in cells if row[4] == mechanism]
        worst = max(mine, key=lambda row: row[7])
        sure = max(mine, key=lambda row: row[7] - row[8])
        print(f"without {mechanism}: worst loss {worst[7]:.1f} % (spread {worst[8]:.1f} %; {worst[0]}, "
              f"{worst[1]}, {text_of(worst[2])} {worst[3]}); most beyond its spread {sure[7]:.1f} % "
              f"(spread {sure[8]:.1f} %; {sure[0]}, {sure[1]}, {text_of(sure[2])} {sure[3]}); mean "
              f"{statistics.mean(row[7] for row in mine):.1f} % of {len(mine)} cells")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--driver", default="softgpu", help="softgpu, nvidia")
    parser.add_argument("--devices", default="0,0", help="devices of the two workers, with --driver nvidia")
    parser.add_argument("--quick", action="store_true", help="two cases, two sizes, one round")
    parser.add_argument("--rounds", type=int, default=5, help="the most rounds")
    parser.add_argument("--budget", type=float, default=320, help="seconds; no round begins that "
                        "would end later")
    parser.add_argument("--seconds", type=float, default=0.03, help="of single copies, per size")
    parser.add_argument("--sizes", default="64K,512K,4M,16M,64M")
    parser.add_argument("--passes", default="start,settled,loaded")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4),
                        help="cases of slow links that run at the same time")
    parser.add_argument("--out", help="a CSV file with all cells")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    if arguments.quick:
        arguments.sizes, arguments.rounds, arguments.seconds = "256K,4M", 1, 0.01
    rounds = measure_all(arguments, cases_of(arguments))
    report(cells_of(rounds), arguments.out)
    print(f"{min(map(len, rounds.values()))} to {max(map(len, rounds.values()))} rounds, "
          f"{arguments.driver}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
