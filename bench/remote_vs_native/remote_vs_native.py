#!/usr/bin/env python3
"""Compares a local GPU with the same GPU behind rcuda, alternately in one run.

    remote_vs_native.py --build FOLDER [--rounds 3] [--torch-rounds 1] [--transports shm,tcp] [--device 0]
                        [--before FOLDER] [--budget SECONDS] [--driver nvidia] [--managed | --small-mapped | --short |
                        --copies [SIZE ...] [--pause US] | --script NAME] [--sockets 1,2,4,8] [--cores SERVER[/CLIENT] ...]
                        [--torch [PART ...]]

Starts an rcuda-server on this machine, runs bench/remote_vs_native/figures natively and over every
transport in turn, and prints the median of each figure and its ratio to native. Above 1 is better than
native, for latencies as for bandwidths. The spread is native's largest value divided by its smallest. "best" is
the ratio of the best rounds, because a machine that others use, too, may run a process at half its speed. If
PyTorch is installed, the first --torch-rounds rounds also run torch_figures.py, and a second table shows the
CPU time of its threads and of the workers' threads. --torch runs only torch_figures.py: all its parts, or the named
parts. With tcp, a third table has the least time of a step over TCP: the native time, but with the copy to the device
at the speed of plain sockets.
The transport "tls" is tcp with a token and encryption, as a client of another machine has it; "reconnecting" is tcp
with RCUDA_RECONNECT; "movable" is shm to a server with movable_memory (docs/parking.md).
--before names the build folder of another commit, which then runs in turn as well. A further table has
the ratio to that build, and the largest ratio between two rounds of that build, which shows the noise.
--managed runs bench/managed instead: managed memory by access pattern. --small-mapped runs small_mapped instead: a
launch and its wait while the program has thousands of small mapped allocations. --short runs short_waits instead: the
column "least" is the least time of any forwarding over shared memory. --copies runs copies instead (the sizes from
512k on, or those named), with --pause after a pause before each copy.
--script runs a script of this folder: torch_copies.py or openmm_steps.py.
--sockets adds bench/p2p/sockets with these numbers of streams to the rounds of --copies: plain sockets for tcp, plain
sockets and OpenSSL's streams for tls, one thread's memcpy into shared memory for shm. Tables show the ratio to the best
number of streams at each size. With softgpu, "copy" is the same with the copy that softgpu makes of the received bytes.
--cores binds the server (and the receiving end of sockets) to processors, the clients (and the sending end) to the same
or others: "0-3", "0/1". Everything is measured for each argument.
--budget prevents rounds that would end after this time.
Needs an NVIDIA GPU; with --driver softgpu the first transport takes the place of native.
"""

import argparse
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"64k": 64 << 10, "128k": 128 << 10, "192k": 192 << 10, "256k": 256 << 10,  # of copies.cu
         "512k": 512 << 10, "1m": 1 << 20, "4m": 4 << 20, "16m": 16 << 20, "64m": 64 << 20}
DEFAULT_SIZES = [size for size, count in SIZES.items() if count >= 512 << 10]
CPU, BYTES = "cpu:", "bytes:"  # beginnings of names of figures of torch_figures.py
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
    """The ratio of two figures; above 1 if `value` is better."""
    return value / base if name.endswith("gbps") else base / value


def best(name, values):
    return max(values) if name.endswith("gbps") else min(values)


def remote_environment(build, server, transport, device, folder):
    environment = dict(os.environ, RCUDA_DEVICES=f"127.0.0.1@{server.port}:{device}",
                       RCUDA_TRANSPORT=transport, LD_PRELOAD=os.path.join(build, "lib/librcuda.so"))
    if transport == "tls":
        environment.update(RCUDA_TRANSPORT="tcp", RCUDA_SECURITY="tls",
                           RCUDA_TOKEN_FILE=os.path.join(folder, "token"))
    elif transport == "reconnecting":
        environment.update(RCUDA_TRANSPORT="tcp", RCUDA_RECONNECT="1m")
    elif transport == "movable":
        environment.update(RCUDA_TRANSPORT="shm")
    return environment


def processors_of(text):
    """The numbers in a list as taskset's: "0-2,5"."""
    ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]


class Sockets:
    """The rounds of bench/p2p/sockets, by kind of stream, number of streams and size."""

    def __init__(self, build, streams, sizes, cores, transports, driver):
        self.program, self.sizes = os.path.join(build, "bench/p2p/sockets"), sizes
        server, client = cores
        self.bind, self.options = bound(client), []
        if server:
            self.options += ["--receiver-cores", ",".join(map(str, processors_of(server)))]
        kinds = {"sockets": [], "TLS sockets": ["--tls"], "memcpy": ["--memory"]}
        self.of_transport = {"tcp": ["sockets"], "tls": ["sockets", "TLS sockets"], "reconnecting": ["sockets"],
                             "shm": ["memcpy"], "movable": ["memcpy"]}
        used = [kind for kind in kinds if any(kind in self.of_transport[transport] for transport in transports)]
        copies = {"": [], ", copy": ["--copy"]} if driver == "softgpu" else {"": []}
        self.measured = {(kind + copy, count): [*kinds[kind], *copies[copy], "--streams", count]
                         for kind, copy, count in itertools.product(used, copies, streams)
                         if kind + copy != "memcpy" or count == streams[0]}
        self.rounds = {which: {size: [] for size in sizes} for which in self.measured}

    def measure(self):
        for which, options in self.measured.items():
            for size in self.sizes:
                count = str(SIZES[size])
                command = [*self.bind, self.program, "--min", count, "--max", count, "--walk", "128M", "--no-header",
                           *self.options, *options]
                line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                self.rounds[which][size].append(float(line.split(",")[4]))

    def best(self, kind, size):
        """The rounds of the number of streams with the best median, and this number."""
        rounds = {count: times[size] for (name, count), times in self.rounds.items() if name == kind}
        count = min(rounds, key=lambda count: statistics.median(rounds[count]))
        return rounds[count], count

    @staticmethod
    def ratio(times, values):
        """A text with the ratio of the medians; in brackets, the ratios of the worst and the best round."""
        rounds = [time / value for time, value in zip(times, values)]
        return f"{statistics.median(times) / statistics.median(values):6.2f} ({min(rounds):4.2f}, {max(rounds):4.2f})"

    def print_ratios(self, samples):
        for kind in dict.fromkeys(kind for kind, _ in self.measured):
            modes = [mode for mode in samples if kind.removesuffix(", copy") in self.of_transport.get(mode.split()[0], [])]
            print(f"\n| ratio to {kind:23} |" + "".join(f" {mode:>20} |" for mode in modes) + "\n|" + "-" * 34
                  + "|" + ("-" * 22 + "|") * len(modes))
            for size in self.sizes:
                times, count = self.best(kind, size)
                print(f"| {size} with {count} streams: {statistics.median(times):.4g} us, "
                      f"{SIZES[size] / statistics.median(times) / 1e3:.3g} GB/s; slowest by fastest round "
                      f"{max(times) / min(times):.2f} |")
                for name in samples[modes[0]]:
                    if name.endswith(f"_{size}_us") and not name.startswith("issue"):
                        print(f"| {name:32} |" + "".join(f" {self.ratio(times, samples[mode][name])} |" for mode in modes))


def run_rounds(environments, program, first, rounds, torch_rounds, torch_parts, budget, beside=lambda: None):
    """Returns {mode: {figure: values of the rounds}}."""
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
    """The least time of a step over TCP: the native time, with the copy to the device at the speed of plain sockets."""
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


def parse_arguments():
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
    instead.add_argument("--copies", nargs="*", choices=list(SIZES), metavar="SIZE")
    instead.add_argument("--script", dest="program", metavar="NAME")
    parser.add_argument("--pause", help="for --copies: microseconds between two copies")
    parser.add_argument("--sockets", help="numbers of streams, for --copies")
    parser.add_argument("--cores", nargs="+", default=[""], metavar="SERVER[/CLIENT]", help="processors, as for taskset")
    parser.add_argument("--torch", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    if arguments.copies is not None:
        arguments.program = "remote_vs_native/copies"
    if arguments.pause and (arguments.copies is None or arguments.sockets):
        parser.error("--pause is only for --copies without --sockets")
    return arguments


def program_of(arguments, client_cores):
    if arguments.torch is not None:
        return None
    if arguments.program and arguments.program.endswith(".py"):
        return [*bound(client_cores), sys.executable, os.path.join(HERE, arguments.program)]
    return [*bound(client_cores), os.path.join(os.path.abspath(arguments.build), "bench",
                                               arguments.program or "remote_vs_native/figures"),
            *(["--pause", arguments.pause] if arguments.pause else []), *(arguments.copies or [])]


def compare(arguments, server_cores, client_cores):
    builds = {"": os.path.abspath(arguments.build)}
    if arguments.before:
        builds[" before"] = os.path.abspath(arguments.before)
    folder = tempfile.TemporaryDirectory()
    transports = arguments.transports.split(",")

    def start(build, **settings):
        return Server(build, arguments.driver, str(arguments.device), options=("--pool", "2"), wrapper=bound(server_cores),
                      environment=dict(make_token(builds[""], folder.name), **settings))

    servers = {suffix: start(build) for suffix, build in builds.items()}
    if "movable" in transports:
        servers.update({"movable" + suffix: start(build, RCUDA_SERVER_MOVABLE_MEMORY="true")
                        for suffix, build in builds.items()})
    environments = {}
    if arguments.driver == "nvidia":
        environments["native"] = dict(os.environ, CUDA_VISIBLE_DEVICES=str(arguments.device))
        if arguments.program and arguments.program.endswith("short_waits"):
            environments["least"] = dict(environments["native"], LEAST="1")
    for transport in transports:
        for suffix, build in builds.items():
            server = servers["movable" + suffix if transport == "movable" else suffix]
            environments[transport + suffix] = remote_environment(build, server, transport, arguments.device, folder.name)
    sockets = None
    if arguments.sockets:
        sockets = Sockets(builds[""], arguments.sockets.split(","), arguments.copies or DEFAULT_SIZES,
                          (server_cores, client_cores), transports, arguments.driver)
    only_torch = arguments.torch is not None
    torch_rounds = arguments.rounds if only_torch else 0 if arguments.program else arguments.torch_rounds
    try:
        samples = run_rounds(environments, program_of(arguments, client_cores), not arguments.program and not only_torch,
                             arguments.rounds, torch_rounds, arguments.torch or [], arguments.budget,
                             sockets.measure if sockets else lambda: None)
    finally:
        for server in servers.values():
            outcome = server.stop()
            if outcome != 0:
                print(f"rcuda-server: {outcome}\n{server.text()}", file=sys.stderr)
    base = next(iter(environments))
    print_against_base(samples, base, [mode for mode in ("least", *transports)
                                       if mode in samples and mode != base])
    if sockets:
        sockets.print_ratios(samples)
    print_cpu(samples, [base, *transports])
    if base == "native" and "tcp" in transports:
        print_limits(samples, builds[""])
    if arguments.before:
        print_against_before(samples, transports)


def main():
    arguments = parse_arguments()
    for cores in arguments.cores:
        server_cores, _, client_cores = cores.partition("/")
        if cores:
            print(f"\nprocessors of the server {server_cores}, of the client {client_cores or server_cores}\n")
        compare(arguments, server_cores, client_cores or server_cores)


if __name__ == "__main__":
    main()
