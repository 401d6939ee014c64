"""Generates the client's exported symbols: cuX records the call when a trace is written, calls the
entry point, and turns a std::exception into an error. Except in the functions of SHORT, the calling thread
cannot be cancelled (pthread_cancel) meanwhile.

The entry points themselves (client/entry, generated ones, weak fallbacks) are written under their own
names, but assembled as rcuda_cuX by entry_labels.h, which their targets include before everything else.
So entry points contain no code for tracing or exceptions, and calls among them are not recorded. Without
a trace, the wrapper costs one load and one call and, except in SHORT, switches cancellation off and on.

A function introduced after CUDA 12.4 first checks whether the driver has it
(api/exports/driver_version.h). In any other libcuda.so.1, newer_labels.h and newer_symbols.cpp add only
this check to these functions.
"""

from emit import NOTICE
from exports import newer_functions

# Calls so short that switching cancellation off and on would be noticeable (two locked instructions, 10 to 20 ns).
# They rarely block; the code that blocks switches cancellation off itself (common/base/cancellation_off.h).
SHORT = {"cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxSetCurrent",
         "cuEventQuery", "cuEventRecord", "cuLaunchKernel", "cuLaunchKernelEx", "cuStreamIsCapturing",
         "cuStreamQuery", "cuStreamWaitEvent"}

HEADERS = "#include <cuda.h>\n#include <cudaProfiler.h>\n\n"


def declared(toolkit):
    """The prototypes of the symbols that get a wrapper. Symbols without a prototype are exported unchanged, because
    their arguments are unknown."""
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
             '#include "client/settings/process_end.h"\n#include "client/trace/thrown.h"\n'
             '#include "client/trace/trace.h"\n'
             '#include "common/base/cancellation_off.h"\n\n'
             "using rcuda::CancellationOff;\nusing rcuda::client::trace::Span;\n\n"
             "#define RCUDA_TRACED static __attribute__((noinline, cold))\n\n"
             "// Hidden symbols of this library.\n#pragma GCC visibility push(hidden)\nextern \"C\" {\n"]
    lines += [f"CUresult rcuda_{p.name}({', '.join(p.types) or 'void'});\n"
              for p in declared(toolkit)]
    lines.append('}\n#pragma GCC visibility pop\n\nextern "C" {\n'
                 '#pragma GCC visibility push(default)\n\n')
    for p in declared(toolkit):
        names = ", ".join(q.name for q in p.parameters)
        # The traced call is a separate function, so that the untraced path is only a call. Only
        # std::exception is caught, because the unwinding of pthread_exit() must pass.
        gate = refusal(p.name, newer[p.name]) if p.name in newer else ""
        is_short = p.name.removesuffix("_ptsz") in SHORT
        guard = "  const CancellationOff off;\n"
        off, traced_off = ("", guard) if is_short else (guard, "")
        lines.append(f"RCUDA_TRACED CUresult traced_{p.name}({p.parameter_list}) {{\n{traced_off}"
                     f"  Span span(\"{p.name}\");\n"
                     f"  return span.result(rcuda_{p.name}({names}));\n}}\n"
                     f"{p.declaration} {{\n{off}"
                     f"  try {{\n{gate}"
                     f"    return rcuda::client::final_result(rcuda::client::trace::on() "
                     f"? traced_{p.name}({names}) : rcuda_{p.name}({names}));\n"
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
