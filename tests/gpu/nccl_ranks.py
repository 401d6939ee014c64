#!/usr/bin/env python3
"""NCCL's collectives in processes with a GPU each, natively and through servers.

    nccl_ranks.py --build FOLDER [--transports shm,tcp] [--megabytes 64]

One server has all GPUs of this machine. The ranks see them all and use one each, or see one each, by
CUDA_VISIBLE_DEVICES or because they name no other. Then ranks on two servers, which must end with an error.
The last two lines are for information: two servers with NCCL told not to look for peer access, and not for
memory that ranks share either. Prints a table of what each way computed, with the bus bandwidth of an
all-reduce as NCCL's own tests define it; exits with 1 if one is not as said. Needs two GPUs and PyTorch
with NCCL.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../e2e"))
SECONDS = 40  # for all ranks of one way


def rank_main():
    import torch
    import torch.distributed as dist
    rank, ranks, megabytes = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MEGABYTES"))
    torch.cuda.set_device(int(os.environ["DEVICE"]))
    dist.init_process_group("nccl", init_method=os.environ["MEET"], rank=rank, world_size=ranks)

    def check(name, tensor, expected):
        assert (tensor == expected).all().item(), f"{name}: {tensor.flatten()[:4].tolist()}, not {expected}"

    values = torch.full((1 << 20,), rank + 1.0, device="cuda")
    dist.all_reduce(values)
    check("all_reduce", values, ranks * (ranks + 1) / 2)
    dist.broadcast(values.fill_(rank), src=1)
    check("broadcast", values, 1)
    gathered = [torch.empty(1000, device="cuda") for _ in range(ranks)]
    dist.all_gather(gathered, torch.full((1000,), float(rank), device="cuda"))
    for other, part in enumerate(gathered):
        check("all_gather", part, other)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    sent, received = torch.full((4096,), float(rank), device="cuda"), torch.empty(4096, device="cuda")
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, received, before)]):
        request.wait()
    check("send and receive", received, before)
    large = torch.ones(megabytes << 18, device="cuda")
    for _ in range(3):
        dist.all_reduce(large)
    torch.cuda.synchronize()
    begin, times = time.perf_counter(), 10
    for _ in range(times):
        dist.all_reduce(large)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / times
    if rank == 0:
        print(f"right, {2 * (ranks - 1) / ranks * (megabytes << 20) / seconds / 1e9:.1f} GB/s")
    dist.destroy_process_group()


def run(ranks, environment_of, megabytes):
    """The outcome of all ranks in words, and whether they computed what they must."""
    with tempfile.TemporaryDirectory() as folder:
        running = [subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(environment_of(rank), NCCL_DEBUG="WARN", RANK=str(rank), WORLD_SIZE=str(ranks), MEGABYTES=str(megabytes),
                     MEET=f"file://{folder}/meet")) for rank in range(ranks)]
        deadline = time.monotonic() + SECONDS
        said = []
        for process in running:
            try:
                said.append(process.communicate(timeout=max(1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                said.append(("", "still running: " + process.communicate()[1][-300:]))
    bad = ["\n".join(streams) for process, streams in zip(running, said) if process.returncode]
    if not bad:
        return said[0][0].strip().splitlines()[-1], True
    lines = [line for line in "\n".join(bad).splitlines() if line.strip()]
    telling = [line for line in lines if "rcuda" in line or "NCCL WARN" in line or "Error" in line] or lines
    return " / ".join(dict.fromkeys(telling[-3:])), False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=os.path.abspath)
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--megabytes", type=int, default=64)
    arguments = parser.parse_args()
    from servers import Server
    gpus = len(subprocess.check_output(["nvidia-smi", "-L"], text=True).splitlines())
    if gpus < 2:
        print("needs two GPUs")
        return 1

    def remote(transport, devices_of, device_of, **more):
        return lambda rank: dict(os.environ, RCUDA_TRANSPORT=transport, RCUDA_DEVICES=devices_of(rank),
                                 RCUDA_SECURITY="none", DEVICE=str(device_of(rank)),
                                 LD_PRELOAD=os.path.join(arguments.build, "lib/librcuda.so"),
                                 LD_LIBRARY_PATH=os.path.join(arguments.build, "lib/rcuda"),  # for NVML
                                 **{name: value(rank) for name, value in more.items()})

    def start(devices):
        return Server(arguments.build, driver="nvidia", devices=devices, options=["--insecure", "--pool", "2"])

    servers = [start(",".join(map(str, range(gpus)))), *(start(str(gpu)) for gpu in (0, 1))]
    def everything(_):
        return ",".join(f"127.0.0.1@{servers[0].port}:{gpu}" for gpu in range(gpus))

    def one_of_each(rank):
        return f"127.0.0.1@{servers[1 + rank].port}:{rank}"

    # name: (environment of a rank, number of ranks, whether it must work; None: for information)
    ways = {"native": (lambda rank: dict(os.environ, DEVICE=str(rank)), gpus, True)}
    for transport in arguments.transports.split(","):
        ways[transport] = remote(transport, everything, str), gpus, True
        ways[f"{transport}, one visible"] = (
            remote(transport, everything, lambda _: 0, CUDA_VISIBLE_DEVICES=str), gpus, True)
    ways["only the own GPU"] = (
        remote("shm", lambda rank: f"127.0.0.1@{servers[0].port}:{rank}", lambda _: 0), gpus, True)
    ways["two servers"] = remote("shm", one_of_each, lambda _: 0), 2, False
    ways["two servers, no P2P"] = (
        remote("shm", one_of_each, lambda _: 0, NCCL_P2P_DISABLE=lambda _: "1"), 2, None)
    ways["two servers, sockets"] = (
        remote("shm", one_of_each, lambda _: 0, NCCL_P2P_DISABLE=lambda _: "1", NCCL_SHM_DISABLE=lambda _: "1"), 2, None)
    failed = False
    try:
        for way, (environment_of, ranks, works) in ways.items():
            words, good = run(ranks, environment_of, arguments.megabytes)
            print(f"| {way:20} | {ranks} ranks | {words} |", flush=True)
            failed |= works is not None and (good != works or "still running" in words)
    finally:
        for server in servers:
            server.stop()
    return int(failed)


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank_main()
    else:
        sys.exit(main())
