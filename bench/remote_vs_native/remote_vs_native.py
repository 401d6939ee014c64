#!/usr/bin/env python3
"""Compares a local GPU with the same GPU behind rcuda, alternately in one run.

    remote_vs_native.py --build FOLDER [--rounds 3] [--torch-rounds 1] [--transports shm,tcp] [--device 0]
                        [--before FOLDER] [--budget SECONDS] [--driver nvidia] [--managed | --small-mapped | --short |
                        --copies | --script NAME] [--sockets 1,2,4] [--cores LIST] [--client-cores LIST] [--torch [PART ...]]

Starts an rcuda-server on this machine, runs bench/remote_vs_native/figures natively and over every
transport in turn, and prints the median of each figure and its ratio to native: above 1 is better than
native, for latencies as for bandwidths; the spread is native's largest value divided by its smallest, and
"best" the ratio of the best rounds: a machine that others use, too, may run a process at half its speed. If
PyTorch is installed, the first --torch-rounds rounds also run torch_figures.py, and a second table shows the
CPU time of its threads and the workers'. --torch runs nothing else (all its parts, or those named). With tcp, a
third one tells what a step takes if its copy to the device runs as fast as plain sockets, and all else as natively.
The transport "tls" is tcp with a token and encryption, as a client of another machine has it.
--before names the build folder of another commit, which then runs in turn as well. A second table has
the ratio to that build, and the largest ratio between two rounds of that build, which shows the noise.
--managed runs bench/managed instead: managed memory by access pattern. --small-mapped runs small_mapped
instead: a launch and its wait beside thousands of small mapped allocations. --short runs short_waits instead:
the column "least" is what any forwarding over shared memory takes. --copies runs copies instead. --script runs a
script of this folder: torch_copies.py or openmm_steps.py.
--sockets adds plain sockets with so many streams to the rounds of --copies, and a table of the ratio to the number that
is best at each size. With softgpu, "copy" is the same with the copy that softgpu makes of the received bytes.
--cores binds the server, the clients and the sockets to processors, as in "0-3"; --client-cores the clients to others.
--budget prevents rounds that would end after this time.
Needs an NVIDIA GPU; with --driver softgpu the first transport takes the place of native.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"512k": 512 << 10, "1m": 1 << 20, "4m": 4 << 20, "16m": 16 << 20, "64m": 64 << 20}  # of copies.cu
CPU, BYTES = "cpu:", "bytes:"  # what names of figures of torch_figures.py begin with
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import make_token, Server  # noqa: E402


def bound(processors):
    """The beginning of a command that runs on these processors only."""
    return ["taskset", "--cpu-list", processors] if processors else []


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


def ratio(name, value, base):
    """Above 1 where `value` is better."""
    return value / base if name.endswith("gbps") else base / value


def best(name, values):
    return max(values) if name.endswith("gbps") else min(values)


def remote_environment(build, server, transport, device, folder):
    environment = dict(os.environ, RCUDA_DEVICES=f"127.0.0.1@{server.port}:{device}",
                       RCUDA_TRANSPORT=transport, LD_PRELOAD=os.path.join(build, "lib/librcuda.so"))
    if transport == "tls":
        environment.update(RCUDA_TRANSPORT="tcp", RCUDA_SECURITY="tls",
                           RCUDA_TOKEN_FILE=os.path.join(folder, "token"))
    return environment


def socket_times(build, streams, options, bind):
    """By size of copies.cu: microseconds of a transfer by plain sockets."""
    figures = {}
    for name, count in SIZES.items():
        command = [*bind, os.path.join(build, "bench/p2p/sockets"), "--streams", str(streams), "--min", str(count),
                   "--max", str(count), "--walk", "128M", "--no-header", *options]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        figures[name] = float(line.split(",")[4])
    return figures


def print_against_sockets(samples, sockets, modes):
    for what, rounds in sockets.items():
        best = {size: min(statistics.median(figures[size] for figures in of_streams) for of_streams in rounds.values())
                for size in SIZES}
        print(f"\n| ratio to {what:23} |" + "".join(f" {mode:>10} |" for mode in modes) + "\n|" + "-" * 34 + "|"
              + ("-" * 12 + "|") * len(modes))
        print(f"| {'(sockets, us)':32} |" + "".join(f" {size} {best[size]:.4g}" for size in SIZES))
        for name in samples[modes[0]]:
            kind, size = name.split("_")[0], name.split("_")[-2]
            if kind != "issue":
                print(f"| {name:32} |" + "".join(
                    f" {best[size] / statistics.median(samples[mode][name]):10.2f} |" for mode in modes))


def run_rounds(environments, program, first, rounds, torch_rounds, torch_parts, budget, beside=lambda: None):
    """By mode and figure: the values of the rounds."""
    samples = {mode: {} for mode in environments}
    start, longest = time.perf_counter(), 0.0
    for round_number in range(rounds):
        begin = time.perf_counter()
        if begin - start + longest > budget:
            print(f"{round_number} rounds", file=sys.stderr)
            break
        # Every second round has the reverse order, because a run may affect the next one.
        order = list(environments.items())
        for mode, environment in order if round_number % 2 == 0 else reversed(order):
            # PyTorch counts devices by NVML, which knows this machine's GPUs, not the pool.
            seen = environment if mode == "native" else dict(environment, CUDA_VISIBLE_DEVICES="0")
            figures = first_result([*program, "--first"], environment) if first else {}
            if program:
                figures.update(measure(program, seen if program[-1].endswith(".py") else environment))
            if round_number < torch_rounds:
                figures.update(measure([sys.executable, os.path.join(HERE, "torch_figures.py"), *torch_parts], seen))
            for name, value in figures.items():
                samples[mode].setdefault(name, []).append(value)
        beside()
        longest = max(longest, time.perf_counter() - begin)
    return samples


def print_against_base(samples, base_mode, modes):
    print(f"| {'figure':32} | {base_mode:>10} | {'spread':>6} |" +
          "".join(f" {mode:>10} | {'ratio':>6} | {'best':>6} |" for mode in modes))
    print("|" + "-" * 34 + "|" + "-" * 12 + "|" + "-" * 8 + "|" + ("-" * 12 + "|" + ("-" * 8 + "|") * 2) * len(modes))
    for name, values in samples[base_mode].items():
        if name.startswith((CPU, BYTES)):
            continue
        base = statistics.median(values)
        row = f"| {name:32} | {base:10.4g} | {max(values) / min(values):6.2f} |"
        for mode in modes:
            if name not in samples[mode]:
                row += f" {'failed':>10} | {'':6} | {'':6} |"
                continue
            value = statistics.median(samples[mode][name])
            row += (f" {value:10.4g} | {ratio(name, value, base):6.2f} |"
                    f" {ratio(name, best(name, samples[mode][name]), best(name, values)):6.2f} |")
        print(row)


def print_cpu(samples, modes):
    names = sorted({name for mode in modes for name in samples[mode] if name.startswith(CPU)})
    if not names:
        return
    print(f"\n| {'CPU time of a step, ms':52} |" + "".join(f" {mode:>10} |" for mode in modes))
    print("|" + "-" * 54 + "|" + ("-" * 12 + "|") * len(modes))
    for name in names:
        print(f"| {name.removeprefix(CPU):52} |" + "".join(
            f" {statistics.median(samples[mode].get(name, [0])):10.3g} |" for mode in modes))


def print_against_before(samples, modes):
    print(f"\n| {'figure':32} |" + "".join(f" {mode:>6} | {'spread':>6} |" for mode in modes))
    print("|" + "-" * 34 + "|" + ("-" * 8 + "|" + "-" * 8 + "|") * len(modes))
    for name in samples[modes[0]]:
        if name.startswith(BYTES):
            continue
        row = f"| {name:32} |"
        for mode in modes:
            now, then = samples[mode].get(name), samples[f"{mode} before"].get(name)
            if not now or not then:
                row += f" {'failed':>6} | {'':6} |"
                continue
            row += (f" {ratio(name, statistics.median(now), statistics.median(then)):6.2f} |"
                    f" {max(then) / min(then):6.2f} |")
        print(row)


def print_limits(samples, build):
    """What a step can take over TCP at best: the native one, with its copy to the device at the speed of plain sockets."""
    native = {name: statistics.median(values) for name, values in samples["native"].items()}
    rows = []
    for name in [name.removeprefix(BYTES) for name in native if name.startswith(BYTES)]:
        step, copy, count = native[f"{name}_ms"], native[f"{name}_copy_ms"], int(native[BYTES + name])
        sockets = subprocess.run([os.path.join(build, "bench/p2p/sockets"), "--min", str(count), "--max", str(count),
                                  "--walk", str(4 * count), "--no-header"], check=True, capture_output=True, text=True)
        over_sockets = float(sockets.stdout.split(",")[4]) / 1e3
        least = step - copy + over_sockets
        rows.append(f"| {name:12} | {copy:10.3f} | {over_sockets:12.3f} | {least:12.3f} | {step / least:10.2f} |")
    if rows:
        print("\n| step, ms     | its copy   | over sockets | step so      | best ratio |\n|" +
              "-" * 14 + "|" + "-" * 12 + "|" + ("-" * 14 + "|") * 2 + "-" * 12 + "|")
        print("\n".join(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--before", help="build folder of another commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--driver", default="nvidia", help="softgpu: without a native run")
    parser.add_argument("--torch-rounds", type=int,
                        default=1 if importlib.util.find_spec("torch") else 0)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--managed", action="store_const", dest="program", const="managed/managed")
    instead.add_argument("--small-mapped", action="store_const", dest="program",
                         const="managed/small_mapped")
    instead.add_argument("--short", action="store_const", dest="program", const="remote_vs_native/short_waits")
    instead.add_argument("--copies", action="store_const", dest="program", const="remote_vs_native/copies")
    instead.add_argument("--script", dest="program", metavar="NAME")
    parser.add_argument("--sockets", default="", help="numbers of streams, for --copies")
    parser.add_argument("--cores", help="processors, as for taskset")
    parser.add_argument("--client-cores", help="the clients' processors")
    parser.add_argument("--torch", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    builds = {"": os.path.abspath(arguments.build)}
    if arguments.before:
        builds[" before"] = os.path.abspath(arguments.before)
    folder = tempfile.TemporaryDirectory()
    servers = {suffix: Server(build, arguments.driver, str(arguments.device), options=("--pool", "2"),
                              environment=make_token(builds[""], folder.name), wrapper=bound(arguments.cores))
               for suffix, build in builds.items()}
    transports = arguments.transports.split(",")
    environments = {}
    if arguments.driver == "nvidia":
        environments["native"] = dict(os.environ, CUDA_VISIBLE_DEVICES=str(arguments.device))
        if arguments.program and arguments.program.endswith("short_waits"):
            environments["least"] = dict(environments["native"], LEAST="1")
    for transport in transports:
        for suffix, build in builds.items():
            environments[transport + suffix] = remote_environment(build, servers[suffix], transport,
                                                                  arguments.device, folder.name)
    program = [*bound(arguments.client_cores or arguments.cores)]
    if arguments.program and arguments.program.endswith(".py"):
        program += [sys.executable, os.path.join(HERE, arguments.program)]
    else:
        program.append(os.path.join(builds[""], "bench", arguments.program or "remote_vs_native/figures"))
    torch_rounds = 0 if arguments.program else arguments.torch_rounds
    if only_torch := arguments.torch is not None:
        program, torch_rounds = None, arguments.rounds
    sockets = {}

    def measure_sockets():
        all_cores = ",".join(filter(None, [arguments.cores, arguments.client_cores]))
        for streams in filter(None, arguments.sockets.split(",")):
            for what in ("sockets", "sockets, copy") if arguments.driver == "softgpu" else ("sockets",):
                figures = socket_times(builds[""], streams, ["--copy"] if "copy" in what else [], bound(all_cores))
                sockets.setdefault(what, {}).setdefault(streams, []).append(figures)
    try:
        samples = run_rounds(environments, program, not arguments.program and not only_torch, arguments.rounds,
                             torch_rounds, arguments.torch or [], arguments.budget, measure_sockets)
    finally:
        for server in servers.values():
            outcome = server.stop()
            if outcome != 0:
                print(f"rcuda-server: {outcome}\n{server.text()}", file=sys.stderr)
    base = next(iter(environments))
    print_against_base(samples, base, [mode for mode in ("least", *transports)
                                       if mode in samples and mode != base])
    print_against_sockets(samples, sockets, [mode for mode in environments if mode != "native"])
    print_cpu(samples, [base, *transports])
    if base == "native" and "tcp" in transports:
        print_limits(samples, builds[""])
    if arguments.before:
        print_against_before(samples, transports)


if __name__ == "__main__":
    main()
