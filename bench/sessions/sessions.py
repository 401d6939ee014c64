#!/usr/bin/env python3
"""Measures how long short CUDA programs take from their start to their exit, natively and remotely.

    sessions.py --build FOLDER [--programs none,kernel,cublas,cufft,cusolver,torch] [--at-once 1,8,32]
                [--transports shm,tcp] [--starts 20] [--budget SECONDS] [--driver nvidia] [--before FOLDER]
                [--rested] [--pause SECONDS] [--server-user UID] [--users UID,UID] [--under-way] [--old-kernel]

The programs are those of starts.cu, and PyTorch with one operation. A batch is as many processes as run
at once; batches of all modes take turns until each mode has had --starts starts (five times as many of
the cheap "none" and "kernel"), or its part of --budget is spent. The table has the median time of a
batch, from its first start to its last exit, and native's time divided by it: above 1 is better than
native. The spread is the slowest batch divided by the fastest, of the mode where it is largest.
The servers keep images in a cache and have the default number of idle workers. Batches follow
one another without a pause, so with few programs at once a figure also shows how fast new workers get
ready. With --rested every batch waits until the servers are idle and have their idle workers; with --pause
it waits for this time after the previous batch.
The servers run as this process's user (as root, like the packaged service) or as --server-user.
With --users (as root) the programs of a batch run as these users in turn, each with a home folder of its own.
--under-way instead shows the loss of a program that launches kernels all the time while other programs start
and end, --at-once of them at a time: its launches per second alone and with the others, --rounds times in
turn, medians.
--old-kernel adds a server of the same build that runs as on a kernel before 6.16, without SO_PASSRIGHTS: a helper
process closes its local connections (docs/security.md, "Descriptors").
With --driver softgpu, native programs use softgpu as well, and starts take as long as on an H100,
unless SOFTGPU_INIT_MS and its like (softgpu/driver/config.h) say otherwise. Only "none" and "kernel" run on it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from servers import old_kernel, Server  # noqa: E402

TORCH = "import torch; assert torch.ones(3, device='cuda').sum().item() == 3"
CHEAP = ("none", "kernel")
DEFAULT_POOL = 2
# The times of starts on an H100 with driver 580.
H100 = {"SOFTGPU_INIT_MS": "320", "SOFTGPU_CONTEXT_MS": "105", "SOFTGPU_CONTEXT_END_MS": "60"}


def start_server(build, driver, folder, name, user, users, wrapper=()):
    cache = os.path.join(folder, name)
    os.mkdir(cache)
    if user is not None:
        os.chmod(folder, 0o755)
        os.chown(cache, user, user)
    return Server(build, driver=driver, options=["--pool", str(DEFAULT_POOL)], user=user, wrapper=wrapper,
                  environment={"RCUDA_SERVER_IMAGE_CACHE": cache, "RCUDA_SERVER_USERS": users})


def command_of(program, build):
    if program == "torch":
        return [sys.executable, "-c", TORCH]
    return [os.path.join(build, "bench/sessions/starts"), program]


def identities_of(users, folder):
    """Returns for each user the arguments of Popen(), and the variable with the home folder."""
    identities = []
    for uid in users:
        home = os.path.join(folder, f"home-{uid}")
        os.mkdir(home)
        os.chown(home, uid, uid)
        os.chmod(folder, 0o755)
        identities.append((dict(user=uid, group=uid, extra_groups=[], cwd="/"), {"HOME": home}))
    return identities or [({}, {})]


def batch(command, environment, at_once, identities=(({}, {}),)):
    """Runs a batch. Returns the seconds from the first start to the last exit."""
    begin = time.perf_counter()
    running = []
    for index in range(at_once):
        identity, home = identities[index % len(identities)]
        running.append(subprocess.Popen(command, env=dict(environment, **home), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, **identity))
    errors = [process.communicate(timeout=300)[1] for process in running]
    elapsed = time.perf_counter() - begin
    for process, error in zip(running, errors):
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {error.decode()[-500:]}")
    return elapsed


def measure(command, modes, at_once, starts, budget, before_each, identities):
    """Returns {mode: times of its batches}."""
    times = {mode: [] for mode in modes}
    begin = time.perf_counter()
    batches = max(2, -(-starts // at_once))
    for turn in range(batches):
        order = list(modes.items())
        for mode, environment in order if turn % 2 == 0 else reversed(order):
            before_each()
            times[mode].append(batch(command, environment, at_once, identities))
        if time.perf_counter() - begin > budget:
            break
    return times


def launch_rate(command, environment, seconds, program, at_once):
    """Launches per second of a program that runs for `seconds`, while other programs start and end."""
    with subprocess.Popen([*command, "rate", str(seconds)], env=environment, stdout=subprocess.PIPE,
                          text=True) as running:
        while at_once and running.poll() is None:
            batch([*command, program], environment, at_once)
        return float(running.communicate()[0])


def under_way(command, modes, programs, counts, rounds):
    print("| other programs    | mode | alone, launches/s | with them | lost, % | spread |")
    for program in programs:
        for at_once in counts:
            rates = {mode: ([], []) for mode in modes}
            for turn in range(rounds):
                order = list(modes.items())
                for mode, environment in order if turn % 2 == 0 else reversed(order):
                    for beside, values in zip((0, at_once), rates[mode]):
                        values.append(launch_rate(command, environment, 3, program, beside))
            for mode, (alone, beside) in rates.items():
                lost = 100 * (1 - statistics.median(beside) / statistics.median(alone))
                print(f"| {program:9} {at_once:2} at once | {mode} | {statistics.median(alone):.0f} |"
                      f" {statistics.median(beside):.0f} | {lost:.1f} | {max(alone) / min(alone):.2f} |", flush=True)


def modes_of(arguments, servers):
    native = dict(os.environ)
    if arguments.driver == "softgpu":
        native["LD_LIBRARY_PATH"] = os.path.join(arguments.build, "softgpu/lib")
    modes = {"native": native}
    for name, (build, server) in servers.items():
        for transport in arguments.transports.split(","):
            modes[f"{transport}{name}"] = dict(
                os.environ, RCUDA_DEVICES=f"127.0.0.1@{server.port}:0", RCUDA_TRANSPORT=transport,
                LD_PRELOAD=os.path.join(build, "lib/librcuda.so"), CUDA_VISIBLE_DEVICES="0", **server.trust)
    return modes


def row_of(program, at_once, times):
    base_mode = next(iter(times))
    base = statistics.median(times[base_mode])
    row = f"| {program:9} | {at_once:2} | {base:8.3f} |"
    for mode, values in times.items():
        if mode == base_mode:
            continue
        row += f" {statistics.median(values):8.3f} | {base / statistics.median(values):5.2f} |"
    spread = max(max(values) / min(values) for values in times.values())
    return row + f" {spread:6.2f} | {len(times[base_mode]):7} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--before", type=os.path.abspath)
    parser.add_argument("--programs")
    parser.add_argument("--at-once", default="1,8,32")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--rested", action="store_true")
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--server-user", type=int)
    parser.add_argument("--users", type=lambda text: [int(uid) for uid in text.split(",")], default=[])
    parser.add_argument("--under-way", action="store_true")
    parser.add_argument("--old-kernel", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--driver", default="nvidia", choices=["nvidia", "softgpu"])
    arguments = parser.parse_args()
    if arguments.driver == "softgpu":
        for name, milliseconds in H100.items():
            os.environ.setdefault(name, milliseconds)
    usual = "none,kernel" if arguments.driver == "softgpu" else "none,kernel,cublas,cufft,cusolver,torch"
    programs = (arguments.programs or usual).split(",")
    counts = [int(count) for count in arguments.at_once.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        users = ",".join(map(str, arguments.users))

        def start(build, name, wrapper=()):
            return build, start_server(build, arguments.driver, folder, name, arguments.server_user, users, wrapper)

        servers = {"": start(arguments.build, "now")}
        if arguments.before:
            servers[" before"] = start(arguments.before, "before")
        if arguments.old_kernel:
            servers[" old kernel"] = start(arguments.build, "old-kernel-images", old_kernel(folder))
        try:
            modes = modes_of(arguments, servers)
            identities = identities_of(arguments.users, folder)

            def before_each():
                time.sleep(arguments.pause)
                for build, server in servers.values() if arguments.rested else ():
                    server.await_pool(build, DEFAULT_POOL)

            if arguments.under_way:
                under_way([os.path.join(arguments.build, "bench/sessions/starts")], modes, programs, counts,
                          arguments.rounds)
                return
            first, *others = modes
            print(f"| program   | at once | {first} s |" + "".join(f" {mode} s | ratio |" for mode in others) +
                  " spread | batches |", flush=True)
            each = arguments.budget / (len(programs) * len(counts))
            for program in programs:
                command = command_of(program, arguments.build)
                for environment in modes.values():
                    batch(command, environment, len(identities), identities)  # the first starts fill caches
                for at_once in counts:
                    starts = arguments.starts * (5 if program in CHEAP else 1)
                    times = measure(command, modes, at_once, starts, each, before_each, identities)
                    print(row_of(program, at_once, times), flush=True)
        finally:
            for _, server in servers.values():
                server.stop()


if __name__ == "__main__":
    main()
