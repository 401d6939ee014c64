#!/usr/bin/env python3
"""Generates everything that is derived from the CUDA headers and api/table. Run by CMake."""

import argparse
import pathlib
import sys

import client
import coverage
import cuda_header
import driver_table
import exports
import loopback
import printer
import server
import shared_tables
import table
from emit import write_if_changed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="c++", help="C compiler that preprocesses cuda.h")
    parser.add_argument("--include", required=True, help="folder of cuda.h")
    parser.add_argument("--stub", help="the toolkit's stub libcuda.so")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--table", required=True, type=pathlib.Path, help="api/table")
    parser.add_argument("--wire", required=True, type=pathlib.Path, help="common/wire")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="<build>/generated")
    parser.add_argument("--update-lock", action="store_true",
                        help="give new table entries their opcodes in opcodes.lock")
    parser.add_argument("--write-coverage", type=pathlib.Path, help="docs/coverage.md")
    parser.add_argument("--report", action="store_true",
                        help="only list functions that cuda.h and the table do not share")
    arguments = parser.parse_args()

    toolkit = cuda_header.read_toolkit(arguments.compiler, arguments.include, arguments.nm,
                                       arguments.stub)
    adaptations = exports.load_adaptations(arguments.table / "old_versions.toml")
    output = arguments.output / "api"
    write_if_changed(output / "weak_definitions.cpp",
                     exports.emit_definitions(toolkit, adaptations))
    write_if_changed(output / "proc_table.cpp", exports.emit_proc_table(toolkit))
    write_if_changed(output / "exports.map", exports.emit_version_script(toolkit))
    write_if_changed(output / "driver_table.h", driver_table.emit_header(toolkit))
    write_if_changed(output / "driver_table.cpp", driver_table.emit_source(toolkit))

    old_versions = exports.old_versions(toolkit, adaptations)
    try:
        functions = table.load(arguments.table, toolkit, old_versions, arguments.update_lock)
    except table.TableError as error:
        print(f"api/table: {error}", file=sys.stderr)
        return 1
    report = coverage.report(functions)
    if arguments.report:
        print(report or "api/table knows every function of this cuda.h.", end="\n" if not report else "")
        return 0
    if report:
        print(f"api/table and this cuda.h differ in {len(functions.unknown)} new and "
              f"{len(functions.skipped)} missing functions: build the target api-report for the list")
    per_thread = sum(1 for s in toolkit.symbols if cuda_header.PER_THREAD_SUFFIX.search(s))
    page = coverage.emit(functions, toolkit, old_versions, per_thread)
    write_if_changed(output / "coverage.md", page)
    if arguments.write_coverage:
        write_if_changed(arguments.write_coverage, page)
    write_if_changed(output / "weak_definitions_client.cpp",
                     exports.emit_definitions(toolkit, adaptations, functions.functions))
    write_if_changed(output / "opcodes.h", shared_tables.emit_opcodes(functions))
    write_if_changed(output / "opcode_names.cpp", shared_tables.emit_names(
        functions, (arguments.wire / "protocol.h").read_text(encoding="utf-8")))
    write_if_changed(output / "api_hash.h", shared_tables.emit_hash(functions, arguments.wire))
    write_if_changed(arguments.output / "client" / "forward.h", client.emit_header(functions))
    write_if_changed(output / "client_fixups.h", client.emit_fixups(functions))
    write_if_changed(output / "server_fixups.h", server.emit_fixups(functions))
    write_if_changed(output / "server_handlers.h", server.emit_handlers_header(functions))
    write_if_changed(output / "server_dispatch.cpp", server.emit_dispatch(functions))
    write_if_changed(output / "layouts.cpp", printer.emit(functions))
    write_if_changed(output / "loopback_test.cpp", loopback.emit(functions))
    for family in functions.families:
        write_if_changed(output / f"client_{family}.cpp", client.emit_family(functions, family))
        write_if_changed(output / f"server_{family}.cpp", server.emit_family(functions, family))
    return 0


if __name__ == "__main__":
    sys.exit(main())
