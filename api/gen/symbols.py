"""Generates the client's exported symbols: cuX records the call when a trace is written, calls the
entry point, and lets no exception out.

The entry points themselves (client/entry, generated ones, weak fallbacks) are written under their own
names, but assembled as rcuda_cuX: entry_labels.h, which their targets include in front of everything,
says so. So no entry point has to mention tracing or exceptions, calls among them are not recorded, and
what an application calls costs one load and one call more while no trace is written.

A function that came after CUDA 12.0 first asks whether the driver has it (api/exports/driver_version.h).
Any other libcuda.so.1 has the same question, and nothing else, in front of these functions: newer_labels.h
and newer_symbols.cpp.
"""

from emit import NOTICE
from exports import newer_functions

HEADERS = "#include <cuda.h>\n#include <cudaProfiler.h>\n\n"


def declared(toolkit):
    """Symbols without a prototype are exported as they are: nothing is known of their arguments."""
    return [toolkit.prototypes[s] for s in toolkit.symbols if s in toolkit.prototypes]


def emit_labels(toolkit, names=None):
    """Labels for all entry points, or for those in `names`."""
    lines = [NOTICE, "#pragma once\n\n", HEADERS,
             "#define RCUDA_ENTRY(symbol) extern \"C\" decltype(symbol) symbol __asm__(\"rcuda_\" #symbol)\n"]
    lines += [f"RCUDA_ENTRY({p.name});\n" for p in declared(toolkit) if names is None or p.name in names]
    lines.append("#undef RCUDA_ENTRY\n")
    return "".join(lines)


def emit_definitions(toolkit):
    newer = newer_functions(toolkit)
    lines = [NOTICE, HEADERS, '#include "api/exports/driver_version.h"\n'
             '#include "client/session/thrown.h"\n#include "client/session/trace.h"\n\n'
             "using rcuda::client::trace::Span;\n\n"
             "#define RCUDA_TRACED static __attribute__((noinline, cold))\n\n"
             "// Of this library alone.\n#pragma GCC visibility push(hidden)\nextern \"C\" {\n"]
    lines += [f"CUresult rcuda_{p.name}({', '.join(p.types) or 'void'});\n"
              for p in declared(toolkit)]
    lines.append('}\n#pragma GCC visibility pop\n\nextern "C" {\n'
                 '#pragma GCC visibility push(default)\n\n')
    for p in declared(toolkit):
        names = ", ".join(q.name for q in p.parameters)
        # The traced call is a function of its own so that the other one is nothing but a call. Only
        # std::exception is caught: the end of a thread by pthread_exit() has to pass.
        gate = refusal(p.name, newer[p.name]) if p.name in newer else ""
        lines.append(f"RCUDA_TRACED CUresult traced_{p.name}({p.parameter_list}) {{\n"
                     f"  Span span(\"{p.name}\");\n"
                     f"  return span.result(rcuda_{p.name}({names}));\n}}\n"
                     f"{p.declaration} {{\n"
                     f"  try {{\n{gate}"
                     f"    return rcuda::client::trace::on() ? traced_{p.name}({names}) "
                     f": rcuda_{p.name}({names});\n"
                     f"  }} catch (const std::exception& exception) {{\n"
                     f"    return rcuda::client::thrown(\"{p.name}\", exception);\n  }}\n}}\n")
    lines.append('\n#pragma GCC visibility pop\n}  // extern "C"\n')
    return "".join(lines)


def refusal(name, version):
    return f"  if (rcuda::api::lacks({version})) return rcuda::api::lacking(\"{name}\", {version});\n"


def emit_newer_definitions(toolkit):
    newer = newer_functions(toolkit)
    functions = [p for p in declared(toolkit) if p.name in newer]
    lines = [NOTICE, HEADERS, '#include "api/exports/driver_version.h"\n\n'
             "#pragma GCC visibility push(hidden)\nextern \"C\" {\n"]
    lines += [f"CUresult rcuda_{p.name}({', '.join(p.types) or 'void'});\n" for p in functions]
    lines.append('}\n#pragma GCC visibility pop\n\nextern "C" {\n'
                 '#pragma GCC visibility push(default)\n\n')
    for p in functions:
        names = ", ".join(q.name for q in p.parameters)
        lines.append(f"{p.declaration} {{\n{refusal(p.name, newer[p.name])}"
                     f"  return rcuda_{p.name}({names});\n}}\n")
    lines.append('\n#pragma GCC visibility pop\n}  // extern "C"\n')
    return "".join(lines)
