"""Generates the parts that make a library a libcuda.so.1: a definition of every symbol, and the look-up.

Every definition is weak: a handwritten strong definition in an object of the same library replaces it. The
definitions are:
  - cuX_ptsz, cuX_ptds: call cuX for the per-thread default stream;
  - old versions: forward to the current version, if the prototype is the same or
    old_versions.toml has a body;
  - all others: log their name once, return CUDA_ERROR_NOT_SUPPORTED.
"""

import re

from cuda_header import PER_THREAD_SUFFIX, split_version
from emit import NOTICE

# Defined in api/exports.
HANDWRITTEN = {"cuGetProcAddress_v2"}

# Types of parameters that carry the stream inside a struct -> (the struct, its member with the stream).
STREAM_MEMBERS = {"const CUlaunchConfig*": ("CUlaunchConfig", "hStream")}


def version_families(symbols):
    """base name -> {ABI version: symbol}, without the per-thread variants."""
    families = {}
    for symbol in symbols:
        if PER_THREAD_SUFFIX.search(symbol):
            continue
        base, version = split_version(symbol)
        families.setdefault(base, {})[version] = symbol
    return families


def forwards(toolkit, adaptations):
    """symbol -> expression that serves it, for old versions of a function."""
    result = {}
    for family in version_families(toolkit.symbols).values():
        versions = sorted(family)
        for old, new in zip(versions, versions[1:]):
            a = toolkit.prototypes.get(family[old])
            b = toolkit.prototypes.get(family[new])
            if a and b and a.types == b.types and "CUdeviceptr_v1" not in " ".join(a.types):
                names = ", ".join(p.name for p in a.parameters)
                result[a.name] = f"return {b.name}({names});"
    for symbol, body in adaptations.items():
        needed = re.findall(r"\b(cu[A-Z]\w*)\(", body)
        if symbol in toolkit.prototypes and all(name in toolkit.prototypes for name in needed):
            result[symbol] = body.strip()
    return result


def per_thread_body(prototype, base):
    """cuX_ptsz: the base function with the per-thread default stream in place of stream 0."""
    arguments, before, has_stream = [], "", False
    for p in prototype.parameters:
        if p.type == "CUstream":
            has_stream = True
            arguments.append(f"rcuda::api::per_thread_stream({p.name})")
        elif p.type in STREAM_MEMBERS:
            has_stream = True
            struct, member = STREAM_MEMBERS[p.type]
            before += f"  if ({p.name} == nullptr) return CUDA_ERROR_INVALID_VALUE;\n"
            before += f"  {struct} per_thread = *{p.name};\n"
            before += f"  per_thread.{member} = rcuda::api::per_thread_stream(per_thread.{member});\n"
            arguments.append("&per_thread")
        else:
            arguments.append(p.name)
    if not has_stream:
        before += "  rcuda::interop::PerThreadDefaultStreamScope scope;\n"
    return before + f"  return {base}({', '.join(arguments)});"


def old_versions(toolkit, adaptations):
    """old symbol -> the symbol it forwards to with its arguments unchanged, or ""."""
    result = {}
    for symbol, body in forwards(toolkit, adaptations).items():
        same = re.fullmatch(r"return (cu\w+)\([\w, ]*\);", body)
        unchanged = same and toolkit.prototypes[same[1]].types == toolkit.prototypes[symbol].types
        result[symbol] = same[1] if unchanged else ""
    return result


def emit_definitions(toolkit, adaptations, claimed=()):
    """The weak definitions. Functions in `claimed` must be defined elsewhere and get no weak definition, so that
    a library in which one is missing does not link."""
    served = forwards(toolkit, adaptations)
    lines = [NOTICE, '#include <cuda.h>\n#include <cudaProfiler.h>\n\n',
             '#include "api/exports/unsupported.h"\n',
             '#include "common/interop/default_stream.h"\n\n',
             "// A strong definition of the same name elsewhere in the library replaces each of these.\n",
             '#define RCUDA_WEAK extern "C" __attribute__((weak, visibility("default")))\n\n']
    unsupported = []
    for symbol in toolkit.symbols:
        if symbol in HANDWRITTEN or symbol in claimed:
            continue
        prototype = toolkit.prototypes.get(symbol)
        if prototype is None:
            # No header declares its parameters. On x86-64 the caller removes the arguments from the stack, so a
            # function without parameters can be called with any arguments.
            lines.append(f"RCUDA_WEAK CUresult {symbol}(void) {{\n"
                         f"  return rcuda::api::unsupported({len(unsupported)});\n}}\n")
            unsupported.append(symbol)
            continue
        base = PER_THREAD_SUFFIX.sub("", symbol)
        if base != symbol and base in toolkit.prototypes:
            body = per_thread_body(prototype, base)
        elif symbol in served:
            body = "  " + served[symbol].replace("\n", "\n  ")
        else:
            types = ", ".join(prototype.types) or "void"
            lines.append(f"RCUDA_WEAK CUresult {symbol}({types}) {{\n"
                         f"  return rcuda::api::unsupported({len(unsupported)});\n}}\n")
            unsupported.append(symbol)
            continue
        lines.append(f"RCUDA_WEAK {prototype.declaration} {{\n{body}\n}}\n")
    lines.append("\nnamespace rcuda::api {\nconst char* const kUnsupportedNames[] = {\n")
    lines += [f'    "{symbol}",\n' for symbol in unsupported]
    lines.append("    nullptr};\n"
                 f"static_assert({len(unsupported)} <= kMaxUnsupported);\n"
                 "}  // namespace rcuda::api\n")
    return "".join(lines)


def symbol_of_versions(toolkit):
    """[(base name, CUDA version, symbol)]: the symbol that cuGetProcAddress(name, version) selects."""
    rows = []
    for base, family in sorted(version_families(toolkit.symbols).items()):
        abis = sorted(family)
        versions = toolkit.versions.get(base, [])[-len(abis):]
        # Usually there is one typedef per ABI. If a header has fewer, they belong to the newest
        # symbols; symbols without a typedef have always existed.
        oldest = 1 if versions else 2000
        versions = [oldest] * (len(abis) - len(versions)) + versions
        rows += [(base, version, family[abi]) for version, abi in zip(versions, abis)]
    return rows


def per_thread_symbol(toolkit, symbol):
    for suffix in ("_ptsz", "_ptds"):
        if symbol + suffix in toolkit.symbols:
            return symbol + suffix
    return symbol


# Every supported driver has the functions of this version; later functions may be missing.
OLDEST_DRIVER = 12040


def newer_functions(toolkit):
    """symbol -> the CUDA version that introduced it, for declared functions later than OLDEST_DRIVER."""
    result = {}
    for _, version, symbol in symbol_of_versions(toolkit):
        if version > OLDEST_DRIVER:
            for variant in (symbol, symbol + "_ptsz", symbol + "_ptds"):
                if variant in toolkit.prototypes:
                    result[variant] = version
    return result


def opcodes_by_symbol(functions):
    """symbol -> the opcode of the command that it sends, for symbols that send a command of their own."""
    opcodes = {}
    for function in functions.values():
        sent = functions.get(function.alias, function)
        if sent.travels:
            opcodes |= {symbol: sent.opcode for symbol in (function.name, *function.older)}
    return opcodes


def emit_proc_table(toolkit, functions):
    rows = symbol_of_versions(toolkit)
    opcodes = opcodes_by_symbol(functions)
    undeclared = [s for s in toolkit.symbols if s not in toolkit.prototypes]
    lines = [NOTICE, '#include <cuda.h>\n#include <cudaProfiler.h>\n\n',
             '#include "api/exports/proc_address.h"\n\n']
    lines += [f'extern "C" CUresult {symbol}(void);\n' for symbol in undeclared]
    lines.append("\nnamespace rcuda::api {\n\n"
                 "#define RCUDA_ADDRESS(symbol) reinterpret_cast<void*>(&::symbol)\n\n"
                 "// Sorted by name, then version.\n"
                 "const ProcEntry kProcTable[] = {\n")
    for base, version, symbol in rows:
        per_thread = per_thread_symbol(toolkit, symbol)
        lines.append(f'    {{"{base}", {version}, RCUDA_ADDRESS({symbol}), '
                     f"RCUDA_ADDRESS({per_thread}), 0x{opcodes.get(symbol, 0):03x}}},\n")
    lines.append(f"}};\nconst size_t kProcCount = {len(rows)};\n\n}}  // namespace rcuda::api\n")
    return "".join(lines)


def emit_version_script(toolkit, more=()):
    names = "".join(f"    {symbol};\n" for symbol in (*toolkit.symbols, *more))
    return f"{{\n  global:\n{names}  local: *;\n}};\n"


def load_adaptations(path):
    import tomllib
    with open(path, "rb") as file:
        table = tomllib.load(file)
    for symbol, body in table.items():
        if not re.fullmatch(r"cu\w+", symbol) or "return" not in body:
            raise ValueError(f"{path}: {symbol} needs the body of a function with a return statement")
    return table
