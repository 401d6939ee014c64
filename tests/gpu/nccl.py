#!/usr/bin/env python3
"""Runs NCCL natively and through servers, with a process for each GPU: times of collectives, and training with torchrun.

    nccl.py --build FOLDER [--ranks 2] [--parts collectives,training] [--transports shm,tcp] [--max 1G] [--nccl LIBRARY]

There are two hosts, each with half of the ranks. Rank r runs on GPU r; on a machine with one GPU, two ranks share it.
Natively, the hosts are different NCCL_HOSTIDs; remotely, each host is a server on this machine. With a GPU for each rank,
the ranks also run on one host: one server has all GPUs, and each rank uses one of them. In further runs, each rank sees
only its own GPU. Native and remote ranks load the same NCCL: PyTorch's, unless --nccl names another file. Between hosts,
NCCL uses the loopback interface.

Prints the output of each run, then tables: microseconds and bus bandwidth (GB/s) by size, with the ratio to native;
losses and steps per second of a small transformer with DDP and FSDP. Exits with 1 if a run fails, an element is wrong,
or losses differ from the native losses. NVLink multicast is off everywhere.

    nccl.py --build FOLDER --driver softgpu --nccl FOLDER/tests/support/nccl/lib/libnccl.so.2 --parts collectives --max 64K
"""

import argparse
import glob
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
from servers import Server  # noqa: E402

NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
SECONDS = 75  # how long all ranks of one Way may take


def library_of_pytorch():
    folders = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")} | set(sys.path)
    found = [path for folder in folders for path in glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2"))]
    if not found:
        sys.exit("no libnccl.so.2 in Python's packages: name one with --nccl")
    return found[0]


class Way:
    """How ranks run: natively, or through servers. `hosts`: 1 or 2; two hosts have half of the ranks each."""

    def __init__(self, name, hosts, transport="", visible=False):
        self.name, self.hosts, self.transport, self.visible = name, hosts, transport, visible


class Runner:
    def __init__(self, arguments):
        self.build, self.driver, self.nccl = arguments.build, arguments.driver, arguments.nccl
        self.ranks = self.gpus = arguments.ranks
        if self.driver == "nvidia":
            self.gpus = len(subprocess.check_output(["nvidia-smi", "-L"], text=True).splitlines())
        self.failed = False
        self.servers = []
        if self.ranks % 2 or self.ranks // 2 > self.gpus:
            sys.exit(f"{self.ranks} ranks cannot be on two hosts with {self.gpus} GPU(s)")

    def host_of(self, rank):
        return rank * 2 // self.ranks

    def gpus_of(self, host):
        return sorted({rank % self.gpus for rank in range(self.ranks) if self.host_of(rank) == host})

    def ways(self, transports):
        ways = [Way("native", 2)] + [Way(transport, 2, transport) for transport in transports]
        if self.gpus >= self.ranks:
            ways += [Way("native", 1)] + [Way(transport, 1, transport) for transport in transports]
            ways += [Way(f"{transport}, one visible", 1, transport, True) for transport in transports[:1]]
        return ways

    def start_servers(self):
        def start(devices, index):
            environment = {**NO_MULTICAST, "RCUDA_SERVER_NCCL": self.nccl, "NCCL_SOCKET_IFNAME": "lo", "RCUDA_SERVER_CGROUP": "none",
                           "SOFTGPU_DEVICES": str(self.ranks)}
            options = ["--pool", "2", "--insecure"]
            return Server(self.build, driver=self.driver, devices=devices, index=index, options=options,
                          environment=environment)

        self.servers = [start(",".join(map(str, self.gpus_of(host))), host) for host in (0, 1)]
        if self.gpus >= self.ranks:
            self.servers.append(start(",".join(map(str, range(self.ranks))), 2))

    def environment(self, way, rank):
        """The environment of a rank. DEVICE in it is the number of the rank's GPU in its process."""
        libraries = [os.path.join(self.build, "lib/rcuda")]
        more = {"NCCL_SOCKET_IFNAME": "lo", "DEVICE": str(rank % self.gpus)}
        if not way.transport:
            libraries = [os.path.dirname(self.nccl)]
            if self.driver != "nvidia":
                libraries.append(os.path.join(self.build, "softgpu/lib"))
            more["SOFTGPU_DEVICES"] = str(self.ranks)
            if way.hosts == 2:
                more["NCCL_HOSTID"] = f"host{self.host_of(rank)}"
        else:
            place = self.host_of(rank) if way.hosts == 2 else 2
            gpus = self.gpus_of(place) if way.hosts == 2 else list(range(self.ranks))
            more["DEVICE"] = "0" if way.visible else str(gpus.index(rank % self.gpus))
            if way.visible:
                more["CUDA_VISIBLE_DEVICES"] = str(rank)
            preload = [os.path.join(self.build, name) for name in ("lib/librcuda.so", "lib/rcuda/libnccl.so.2")]
            address = f"127.0.0.1@{self.servers[place].port}"
            more.update(RCUDA_DEVICES=",".join(f"{address}:{gpu}" for gpu in gpus), RCUDA_NCCL="server",
                        RCUDA_TRANSPORT=way.transport, RCUDA_SECURITY="none", LD_PRELOAD=" ".join(preload))
        return {**os.environ, **NO_MULTICAST, **more, "LD_LIBRARY_PATH": ":".join(libraries)}

    def run(self, way, command_of):
        """Runs all ranks. Returns rank 0's stdout, or an empty text after a failure, which it prints."""
        begin, running = time.monotonic(), []
        for rank in range(self.ranks):
            files = tempfile.TemporaryFile("w+", errors="replace"), tempfile.TemporaryFile("w+", errors="replace")
            environment = self.environment(way, rank)
            process = subprocess.Popen(command_of(rank, environment), env=environment, stdout=files[0], stderr=files[1],
                                       start_new_session=True)
            running.append((process, files))
        bad = []
        for rank, (process, files) in enumerate(running):
            try:
                outcome = process.wait(timeout=max(1, begin + SECONDS - time.monotonic()))
            except subprocess.TimeoutExpired:
                outcome = f"no end within {SECONDS} s"
            if outcome != 0:
                bad.append(f"rank {rank}: {outcome}")
        texts = []
        for process, files in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for file in files:
                file.seek(0)
                texts.append(file.read())
        title = f"{way.hosts} host{'s' if way.hosts > 1 else ''}, {way.name}"
        print(f"\n=== {title}: {'; '.join(bad) or 'ended'} after {time.monotonic() - begin:.1f} s", flush=True)
        print(texts[0].rstrip(), flush=True)
        if not bad:
            return texts[0]
        self.failed = True
        for rank in range(self.ranks):
            print(f"--- stderr of rank {rank}\n{texts[2 * rank + 1][-2500:]}")
        if way.transport:
            for server in self.servers:
                print("--- log of a server\n" + server.text()[-1500:])
        return ""

    def stop(self):
        for server in self.servers:
            server.stop()


def run_collectives(runner, ways, most):
    program = os.path.join(runner.build, "bench/nccl/collectives")
    results = {}
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            text = runner.run(way, lambda rank, environment: [
                program, "--rank", str(rank), "--ranks", str(runner.ranks), "--device", environment["DEVICE"],
                "--id", os.path.join(folder, "id"), "--max", most, "--seconds", "0.05"])
        rows = re.findall(r"^(\w+) +(\d+) +\d+ +float +([\d.]+) +[\d.]+ +([\d.]+) +(\d+)$", text, re.M)
        results[way] = {(name, int(size)): (float(us), float(bus)) for name, size, us, bus, _ in rows}
        wrong = [f"{name} of {size} B: {errors}" for name, size, _, _, errors in rows if errors != "0"]
        if wrong:
            runner.failed = True
            print(f"WRONG elements, {way.name}: {'; '.join(wrong)}")
    return results


def run_training(runner, ways):
    results = {}
    for way in ways:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        text = runner.run(way, lambda rank, environment: [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(runner.ranks), "--nproc-per-node", "1", "--node-rank",
            str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port), os.path.join(HERE, "nccl_training.py")])
        lines = [line for line in text.splitlines() if line.startswith("{")]
        results[way] = json.loads(lines[-1]) if lines else {}
    return results


def print_collectives(results):
    for hosts in (2, 1):
        ways = [way for way in results if way.hosts == hosts]
        native = next((results[way] for way in ways if not way.transport), None)
        if not native:
            continue
        remote = [way for way in ways if way.transport]
        print(f"\n| {hosts} host(s) | bytes | native, us | native, GB/s |" +
              "".join(f" {way.name}, us | {way.name}, of native |" for way in remote))
        print("|" + "---|" * (4 + 2 * len(remote)))
        for key, (us, bus) in native.items():
            cells = [f"{results[way][key][0]:.1f} | {us / results[way][key][0]:.3f}" if key in results[way] else "- | -"
                     for way in remote]
            print(f"| {key[0]} | {key[1]} | {us:.1f} | {bus:.2f} | " + " | ".join(cells) + " |")


def print_training(runner, results):
    print("\n| training | hosts | way | losses, first and last | as native | steps/s | of native |\n|---|---|---|---|---|---|---|")
    for way, result in results.items():
        native = next(results[other] for other in results if other.hosts == way.hosts and not other.transport)
        for kind, figures in result.items():
            reference = native.get(kind)
            if not reference:
                continue
            same = figures["losses"] == reference["losses"]
            runner.failed |= not same
            print(f"| {kind} | {way.hosts} | {way.name} | {figures['losses'][0]:.6f} {figures['losses'][-1]:.6f} | "
                  f"{'yes' if same else 'NO'} | {figures['steps_per_second']:.1f} | "
                  f"{figures['steps_per_second'] / reference['steps_per_second']:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default="collectives,training")
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--max", default="1G")
    parser.add_argument("--nccl", type=os.path.abspath)
    parser.add_argument("--driver", default="nvidia")
    arguments = parser.parse_args()
    arguments.nccl = arguments.nccl or library_of_pytorch()
    begin, runner, collectives, training = time.monotonic(), Runner(arguments), {}, {}
    print(f"{runner.gpus} GPU(s), {arguments.nccl}", flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    try:
        runner.start_servers()
        ways = runner.ways(arguments.transports.split(","))
        if "training" in arguments.parts:
            training = run_training(runner, ways)
        if "collectives" in arguments.parts:
            collectives = run_collectives(runner, ways, arguments.max)
    finally:
        runner.stop()
        if collectives:
            print_collectives(collectives)
        if training:
            print_training(runner, training)
        print(f"\n{time.monotonic() - begin:.0f} s, {'FAILED' if runner.failed else 'as expected'}")
    return int(runner.failed)


if __name__ == "__main__":
    sys.exit(main())
