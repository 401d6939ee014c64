#!/usr/bin/env python3
"""Generates everything that is derived from the CUDA headers and api/table. Run by CMake."""

import argparse
import pathlib
import sys

import client
import commands
import coverage
import cuda_header
import driver_overrides
import driver_table
import exports
import loopback
import nccl
import printer
import server
import server_commands
import shared_tables
import struct_layouts
import symbols
import table
import traits
from emit import write_if_changed


REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "api" / "table"
# Symbols that only the client library exports besides the driver's functions. They are defined in
# client/settings/sanitizers.cpp, client/nccl/library.cpp and common/base/first_report.cpp.
CLIENT_SYMBOLS = ["__asan_default_options", "rcuda_nccl_functions", "rcuda_nccl_set_encryption", "rcuda_reports"]


def generated_files(toolkit, adaptations, old_versions, functions, overrides):
    """Path under <build>/generated -> text."""
    files = {
        "api/weak_definitions.cpp": exports.emit_definitions(toolkit, adaptations),
        "api/weak_definitions_client.cpp":
            exports.emit_definitions(toolkit, adaptations, functions.functions),
        "api/proc_table.cpp": exports.emit_proc_table(toolkit, functions.functions),
        "api/exports.map": exports.emit_version_script(toolkit),
        "api/exports_client.map": exports.emit_version_script(toolkit, CLIENT_SYMBOLS),
        "api/driver_table.h": driver_table.emit_header(toolkit),
        "api/driver_functions.h": driver_table.emit_visitor(toolkit),
        "api/driver_table.cpp": driver_table.emit_source(toolkit),
        "api/driver_overrides.h": driver_overrides.emit_header(overrides, toolkit),
        "api/guard_overrides.cpp": driver_overrides.emit_source("guard", overrides, toolkit),
        "api/movable_overrides.cpp": driver_overrides.emit_source("movable", overrides, toolkit),
        "api/meter_overrides.cpp": driver_overrides.emit_source("meter", overrides, toolkit),
        "api/coverage.md": coverage.emit(functions, toolkit, old_versions),
        "api/opcodes.h": shared_tables.emit_opcodes(functions),
        "api/opcode_names.cpp": shared_tables.emit_names(functions),
        "api/command_hashes.cpp": shared_tables.emit_hashes(functions, toolkit),
        "api/layouts.cpp": printer.emit(functions),
        "api/client_fixups.h": client.emit_fixups(functions),
        "api/server_fixups.h": server.emit_fixups(functions),
        "api/server_handlers.h": server.emit_handlers_header(functions),
        "api/server_dispatch.cpp": server.emit_dispatch(functions),
        "api/loopback_test.cpp": loopback.emit(functions),
        "api/entry_labels.h": symbols.emit_labels(toolkit),
        "api/client_symbols.cpp": symbols.emit_definitions(toolkit),
        "api/newer_labels.h": symbols.emit_labels(toolkit, exports.newer_functions(toolkit)),
        "api/newer_symbols.cpp": symbols.emit_newer_definitions(toolkit),
        "api/server_commands.h": server_commands.emit_header(functions),
        "api/server_commands.cpp": server_commands.emit_dispatch(functions),
        "api/traits.h": traits.emit(functions),
        "client/forward.h": client.emit_header(functions),
        "common/wire/commands.h": commands.emit_header(functions),
        "common/wire/struct_layouts.h": struct_layouts.emit(REPOSITORY),
    }
    for family in functions.families:
        files[f"api/client_{family}.cpp"] = client.emit_family(functions, family)
        files[f"api/server_{family}.cpp"] = server.emit_family(functions, family)
    return files | nccl.files(nccl.load(TABLE / "nccl.toml"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="cc", help="C compiler that preprocesses cuda.h")
    parser.add_argument("--include", required=True, help="folder of cuda.h")
    parser.add_argument("--stub", help="the toolkit's stub libcuda.so")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--output", type=pathlib.Path, help="<build>/generated")
    parser.add_argument("--update-lock", action="store_true",
                        help="give new table entries their opcodes in opcodes.lock")
    parser.add_argument("--write-coverage", type=pathlib.Path, help="docs/coverage.md")
    parser.add_argument("--report", action="store_true",
                        help="only list functions that are in cuda.h or in the table, but not in both")
    arguments = parser.parse_args()
    if not arguments.report and arguments.output is None:
        parser.error("--output is required")

    toolkit = cuda_header.read_toolkit(arguments.compiler, arguments.include, arguments.nm,
                                       arguments.stub)
    adaptations = exports.load_adaptations(TABLE / "old_versions.toml")
    old_versions = exports.old_versions(toolkit, adaptations)
    try:
        functions = table.load(TABLE, toolkit, old_versions, arguments.update_lock)
        overrides = driver_overrides.load(TABLE / "driver_overrides.toml", toolkit)
    except table.TableError as error:
        print(f"api/table: {error}", file=sys.stderr)
        return 1
    report = coverage.report(functions)
    if arguments.report:
        print(report.rstrip() or "api/table knows every function of this cuda.h.")
        return 0
    if report:
        print(f"api/table and this cuda.h differ in {len(functions.unknown)} new and "
              f"{len(functions.skipped)} missing functions: build the target api-report for the list")
    files = generated_files(toolkit, adaptations, old_versions, functions, overrides)
    for name, text in files.items():
        write_if_changed(arguments.output / name, text)
    if arguments.write_coverage:
        write_if_changed(arguments.write_coverage, files["api/coverage.md"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
