#!/usr/bin/env python3
"""Makes a libcuda.so to link programs against, with every function that the toolkit's headers declare.

For toolkits without a stub library, such as PyPI's. Like NVIDIA's stub, it contains only the symbols and the
SONAME libcuda.so.1.
"""

import argparse
import pathlib
import subprocess

import cuda_header


def make(compiler, include, output):
    symbols = cuda_header.read_toolkit(compiler, include).symbols
    source = "".join(f"int {name}(void) {{ return 34; }}  /* CUDA_ERROR_STUB_LIBRARY */\n" for name in symbols)
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-",
                    "-o", output], input=source, text=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("--include", required=True, help="folder of cuda.h")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    make(arguments.compiler, arguments.include, arguments.output)


if __name__ == "__main__":
    main()
