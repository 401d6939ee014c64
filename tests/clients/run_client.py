#!/usr/bin/env python3
"""Runs a client of this folder with the wheels of one version of CUDA, as a user of these wheels would.

    run_client.py WHEELS CLIENT LIBCUDA [local]

WHEELS is the virtual environment (build/wheels/python-cuda12). It also keeps what Python, CuPy and Triton compile, so
all clones share that together with the wheels. LIBCUDA is a folder with libcuda.so and libcuda.so.1; Triton links
against it. With `local`, the client also runs on this libcuda; otherwise it runs on a libcuda that is preloaded.
"""

import os
import pathlib
import sys


def main(wheels, client, libcuda, local=""):
    wheels = pathlib.Path(wheels).resolve()  # CuPy's cache depends on the compiler's options, which contain this path
    python = wheels / "bin/python"
    cache = str(wheels / "kernels")
    if not python.exists():
        sys.exit(f"{python} was not found: scripts/setup --tests installs it")
    libraries = sorted(map(str, wheels.glob("lib/python*/site-packages/nvidia/*/lib")))
    # The headers of the wheels' own CUDA, even if the machine has another toolkit.
    headers = wheels.glob("lib/python*/site-packages/nvidia/*/include/cuda_runtime.h")
    toolkit = next((str(header.parent.parent) for header in headers), "/nowhere")
    ptx_as_is = str(pathlib.Path(__file__).with_name("ptx_as_is"))
    search = [libcuda if local else "", *libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = dict(
        os.environ,
        LD_LIBRARY_PATH=":".join(filter(None, search)),
        CUDA_PATH=toolkit, CUDA_HOME=toolkit,
        PYTHONDONTWRITEBYTECODE="",  # as if it were not set
        # softgpu runs PTX, not SASS.
        CUPY_COMPILE_WITH_PTX="1", CUPY_CACHE_DIR=cache, TRITON_CACHE_DIR=cache, TORCHINDUCTOR_CACHE_DIR=cache,
        TRITON_PTXAS_PATH=ptx_as_is, TRITON_PTXAS_BLACKWELL_PATH=ptx_as_is, TRITON_LIBCUDA_PATH=libcuda,
        TRITON_DEFAULT_FP_FUSION="1")
    os.execve(python, [str(python), client], environment)


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
