#!/usr/bin/env python3
"""Measures softgpu's speed: the interpreter's rates, and thrust::sort of a million ints on two cores.

    run.py --build BUILD

Build the target bench_softgpu first. On a machine with other load, compare processor times.
"""

import argparse
import os
import platform
import subprocess
import sys

SORT_CORES = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release", help="build folder (default build/release)")
    build = os.path.abspath(parser.parse_args().build)
    cores = sorted(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {len(cores)} cores, load average {os.getloadavg()[0]:.1f}", flush=True)
    rates = subprocess.run([f"{build}/bench/softgpu/interpreter"])
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{build}/softgpu/lib", SOFTGPU_LOG="error",
                       SOFTGPU_THREADS=str(SORT_CORES))
    print(f"\non {min(SORT_CORES, len(cores))} cores: ", end="", flush=True)
    sort = subprocess.run([f"{build}/bench/softgpu/thrust_sort"], env=environment,
                          preexec_fn=lambda: os.sched_setaffinity(0, cores[:SORT_CORES]))
    return rates.returncode or sort.returncode


if __name__ == "__main__":
    sys.exit(main())
