#!/usr/bin/env python3
"""NCCL's device API natively and through one server: kernels that read and write the memory of other ranks.

    nccl_device.py --build FOLDER [--ranks 2]

Compiles nccl_device.cu with nvcc and the headers of PyTorch's NCCL, and runs it with one process and with a process for
each rank. Needs a GPU for each rank.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from nccl import library_of_pytorch, NO_MULTICAST

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--ranks", default="2")
    arguments = parser.parse_args()
    library = library_of_pytorch()
    headers = os.path.join(os.path.dirname(os.path.dirname(library)), "include")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "nccl_device")
        subprocess.run(["nvcc", "-std=c++17", "-arch=sm_90", "-I", headers, "-o", program, os.path.join(HERE, "nccl_device.cu"),
                        "-Xlinker", library, "-lcuda"], check=True)
        environment = dict(os.environ, **NO_MULTICAST, RCUDA_SERVER_NCCL=library, RCUDA_NCCL="server", NCCL_SOCKET_IFNAME="lo",
                           LD_LIBRARY_PATH=os.path.dirname(library) + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
        remote = [sys.executable, os.path.join(HERE, "../e2e/with_servers.py"), "--build", arguments.build, "--driver", "nvidia",
                  "--transport", "tcp", "--gpus", arguments.ranks, "--"]
        for name, prefix in (("natively", []), ("through a server", remote)):
            for arrangement in ("all", "processes"):
                run = subprocess.run([*prefix, program, arrangement, arguments.ranks], env=environment, capture_output=True,
                                     text=True, timeout=120)
                failed = failed or run.returncode != 0
                print(f"{name}: {run.stdout.strip() or run.stderr.strip()[-1500:]}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
