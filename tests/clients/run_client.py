#!/usr/bin/env python3
"""Runs a client of this folder with the wheels of one CUDA, as a user of them would.

    run_client.py WHEELS CACHE CLIENT [SOFTGPU]

WHEELS is the virtual environment (build/wheels/python-cuda12), CACHE a folder for what CuPy compiles. With
SOFTGPU, the folder of its libcuda.so.1, the client runs on it; otherwise on what is preloaded.
"""

import os
import pathlib
import sys


def main(wheels, cache, client, softgpu=""):
    wheels = pathlib.Path(wheels)
    python = wheels / "bin/python"
    if not python.exists():
        sys.exit(f"{python} was not found: scripts/setup --tests installs it")
    libraries = sorted(map(str, wheels.glob("lib/python*/site-packages/nvidia/*/lib")))
    # The toolkit's own headers, whatever else the machine has.
    (header,) = wheels.glob("lib/python*/site-packages/nvidia/*/include/cuda_runtime.h")
    toolkit = str(header.parent.parent)
    search = [softgpu, *libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = dict(
        os.environ,
        LD_LIBRARY_PATH=":".join(filter(None, search)),
        CUDA_PATH=toolkit, CUDA_HOME=toolkit,
        PYTHONDONTWRITEBYTECODE="1",
        # softgpu takes PTX, no SASS.
        CUPY_COMPILE_WITH_PTX="1", CUPY_CACHE_DIR=cache)
    os.execve(python, [str(python), client], environment)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
