#!/usr/bin/env python3
"""Generates everything that is derived from the CUDA headers and api/table. Run by CMake."""

import argparse
import pathlib
import sys

import cuda_header
import driver_table
import exports
from emit import write_if_changed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="c++", help="C compiler that preprocesses cuda.h")
    parser.add_argument("--include", required=True, help="folder of cuda.h")
    parser.add_argument("--stub", help="the toolkit's stub libcuda.so")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--table", required=True, type=pathlib.Path, help="api/table")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="<build>/generated/api")
    arguments = parser.parse_args()

    toolkit = cuda_header.read_toolkit(arguments.compiler, arguments.include, arguments.nm,
                                       arguments.stub)
    adaptations = exports.load_adaptations(arguments.table / "old_versions.toml")
    output = arguments.output
    write_if_changed(output / "weak_definitions.cpp",
                     exports.emit_definitions(toolkit, adaptations))
    write_if_changed(output / "proc_table.cpp", exports.emit_proc_table(toolkit))
    write_if_changed(output / "exports.map", exports.emit_version_script(toolkit))
    write_if_changed(output / "driver_table.h", driver_table.emit_header(toolkit))
    write_if_changed(output / "driver_table.cpp", driver_table.emit_source(toolkit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
