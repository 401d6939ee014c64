"""Copies of pageable memory in a PyTorch process, and weights from a file of safetensors to the device.

    torch_copies.py [--weights-mb 1000]

Prints "name value" lines: microseconds of a copy of 1 MB and its wait, GB/s of the weights. The figure of a copy is the
median of seven copies after a first one. As in a program that copies rarely, most of these copies use staging memory
that no earlier copy has used. "paused" is the same with 5 ms between copies, in which threads go to sleep.
The file of the weights is in the folder for temporary files, and in the page cache.
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
from safetensors.torch import load_file, save_file

ROWS, COLUMNS = 4096, 8192


def seconds(call):
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def copy_us(call, pause):
    call()
    times = []
    for _ in range(7):
        time.sleep(pause)
        times.append(seconds(call) * 1e6)
    return statistics.median(times)


def weights_gbps(megabytes):
    path = os.path.join(tempfile.gettempdir(), f"rcuda-bench-{os.getuid()}-{megabytes}.safetensors")
    count = max(1, (megabytes << 20) // (ROWS * COLUMNS * 4))
    if not os.path.exists(path):
        save_file({f"layer{i}": torch.rand(ROWS, COLUMNS) for i in range(count)}, path)
    rates = []
    for _ in range(4):
        rates.append(os.path.getsize(path) / seconds(lambda: load_file(path, device="cuda")) / 1e9)
        torch.cuda.empty_cache()
    return statistics.median(rates[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights-mb", type=int, default=1000)
    arguments = parser.parse_args()
    host, device = torch.empty(1 << 18), torch.empty(1 << 18, device="cuda")
    for name, call in (("to", lambda: device.copy_(host)), ("from", lambda: host.copy_(device))):
        print(f"copy_1m_{name}_us", copy_us(call, 0))
        print(f"copy_1m_{name}_paused_us", copy_us(call, 0.005), flush=True)
    print("weights_gbps", weights_gbps(arguments.weights_mb))


if __name__ == "__main__":
    main()
