#!/usr/bin/env python3
"""Inference servers that together hold more memory than the GPU has, and take turns on it.

    oversubscribe.py --build FOLDER [--driver nvidia] [--gib 40] [--programs 4] [--hold 1.5] [--seconds 40] [--pause 4]
                     [--burst 5] [--stay 1s]

Four programs (torch_server.py) together hold 1.5 times the GPU's memory. Each gets bursts of requests, with random pauses of
--pause seconds on average between them. The server has `oversubscribe` and `movable_memory`, so the session of a program may
have to wake when a burst begins, and that parks another session. Prints for each program the latency of the first request in
each burst and that of the others, and how often its session woke. The rows "alone" are the same requests to one program,
natively and through a server without oversubscription. All answers must be right, and no session may end.

--gib: how much of the GPU's memory the server has; another process holds the rest (0: the server has all). Exits with 1 if
anything is wrong. `--driver softgpu --gib 1 --seconds 10` tries the script without a GPU, with `parking.py hold` as the program.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

from parking import driver_with_context, GIB, HERE

import ctypes

from servers import client_environment, Server  # tests/e2e, by parking

ONE_GPU = {"CUDA_VISIBLE_DEVICES": "0"}  # PyTorch counts devices by the NVML of this machine


def occupy(leave):
    """Holds all of the GPU's memory but `leave` bytes, until stdin ends."""
    cuda, free, total, memory = driver_with_context(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    if free.value > leave and cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - leave)) != 0:
        sys.exit("cannot hold the rest of the GPU's memory")
    print("ready", flush=True)
    sys.stdin.read()


class Program:
    """A program that answers requests, and the latencies of its answers."""

    def __init__(self, command, environment, seed, arguments):
        self.chance, self.arguments, self.first, self.others, self.wrong = random.Random(seed), arguments, [], [], 0
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit("a program did not start")

    def request(self):
        begin, answer = time.perf_counter(), ""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except OSError:
            pass  # the program has died
        self.wrong += not answer or not json.loads(answer)["right"]
        return time.perf_counter() - begin

    def use(self):
        end = time.monotonic() + self.arguments.seconds
        while time.monotonic() < end and not self.wrong:
            time.sleep(self.chance.expovariate(1 / self.arguments.pause))
            self.first.append(self.request())
            self.others += [self.request() for _ in range(self.arguments.burst - 1)]

    def row(self, name, wakes):
        def shown(times):
            ordered = sorted(times) or [float("nan")]
            return " / ".join(f"{ordered[int(part * (len(ordered) - 1))] * 1e3:.1f}" for part in (0.5, 0.9, 1))
        return f"| {name} | {shown(self.first)} | {shown(self.others)} | {wakes} | {'WRONG' if self.wrong else 'right'} |"

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def serve(arguments, command, environments):
    """Runs all programs at the same time. Returns them after their requests."""
    programs = [Program(command, environment, seed, arguments) for seed, environment in enumerate(environments)]
    threads = [threading.Thread(target=program.use) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return programs


def start_server(arguments, folder, **settings):
    environment = {f"RCUDA_SERVER_{name.upper()}": value for name, value in settings.items()}
    if arguments.driver == "softgpu":
        environment.update(SOFTGPU_MEMORY=f"{int(arguments.gib * 1024)}M", SOFTGPU_SHARED_MEMORY=os.path.join(folder, "account"))
    return Server(arguments.build, arguments.driver, "0", options=["--pool", "0"], environment=environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--gib", type=float, default=40)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--hold", type=float, default=1.5, help="of the GPU's memory, all programs together")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--pause", type=float, default=4)
    parser.add_argument("--burst", type=int, default=5)
    parser.add_argument("--stay", default="1s", help="stay_awake of the server")
    arguments = parser.parse_args()
    with_torch = arguments.driver == "nvidia"
    native = dict(os.environ, **ONE_GPU)
    if not with_torch:
        native["LD_LIBRARY_PATH"] = os.path.join(arguments.build, "softgpu/lib")
    gib = arguments.gib
    if not gib:
        shown = subprocess.check_output(["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", "0"], text=True)
        gib = int(shown) / 1024
    each = int(gib * arguments.hold / arguments.programs * GIB)
    program = ["torch_server.py"] if with_torch else ["parking.py", "hold"]
    command = [sys.executable, os.path.join(HERE, program[0]), *program[1:], str(each)]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        other = None
        if with_torch and arguments.gib:
            other = subprocess.Popen([sys.executable, os.path.abspath(__file__), "occupy", str(int(gib * GIB))], env=native,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if other.stdout.readline().strip() != "ready":
                sys.exit("the rest of the GPU's memory is not free")
        print(f"{arguments.programs} programs with {each / GIB:.1f} GiB each, on a GPU of {gib:.1f} GiB; milliseconds, median / 90 % / most\n")
        print("| program | first request of a burst | the other requests | wakes | answers |\n|---|---|---|---|---|", flush=True)
        plain = start_server(arguments, folder)
        for name, environment in (("alone, natively", native), ("alone, remotely", client_environment(arguments.build, [plain], "shm", **ONE_GPU))):
            [alone] = serve(arguments, command, [environment])
            print(alone.row(name, 0), flush=True)
            failed = failed or alone.wrong
            alone.end()
        failed = plain.stop() != 0 or failed
        keep = str(int(1.1 * arguments.programs * each) + (1 << 28))
        server = start_server(arguments, folder, movable_memory="true", oversubscribe="2.0", park_memory=keep, stay_awake=arguments.stay)
        environment = client_environment(arguments.build, [server], "shm", **ONE_GPU)
        programs = serve(arguments, command, [environment] * arguments.programs)
        workers = server.sessions(arguments.build)
        for number, program in enumerate(programs):
            worker = workers.get(program.process.pid)
            wakes = len(re.findall(rf"worker {worker}\b.* is awake", server.text()))
            print(program.row(f"{number + 1} of {arguments.programs}", wakes), flush=True)
            failed = failed or program.wrong or worker is None
        for program in programs:
            program.end()
        parks = server.text().count("because another session needs its GPU memory")
        print(f"\n{parks} parks for the room of others; rcuda-server: {server.stop()}")
        failed = failed or parks == 0
        if failed:
            print(server.text(), file=sys.stderr)
        if other:
            other.stdin.close()
            other.wait()
    sys.exit(failed)


if __name__ == "__main__":
    occupy(int(sys.argv[2])) if sys.argv[1:2] == ["occupy"] else main()
