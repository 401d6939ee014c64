"""The functions of NCCL (api/table/nccl.toml): the exports of rcuda's libnccl.so.2, the client's table of functions,
and the table into which a worker loads the server's library."""

import dataclasses
import re
import tomllib

from emit import NOTICE
from errors import TableError

PROPERTIES = {"since", "signature", "class"}
SIGNATURE = re.compile(r"(int|void|const char\*|Team) \((.*)\)")
PARAMETER = re.compile(r"(.*[ *])(\w+)")
# The value that a function returns without a client library, by the type of its result. 2 is
# ncclSystemError. If the client library exists but the program's own NCCL lacks the function, the
# result is 5, ncclInvalidUsage.
FAILURES = {"int": "return 2;", "void": "return;", "const char*": 'return "rcuda\'s client library cannot be loaded";',
            "Team": "return {};"}


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    since: str
    result: str
    parameters: tuple  # (type, name)
    early: bool  # client_functions.h has its own function for it

    @property
    def declared(self):
        return ", ".join(f"{kind}{name}" for kind, name in self.parameters)

    @property
    def arguments(self):
        return ", ".join(name for _, name in self.parameters)


def function_of(name, entry):
    match = SIGNATURE.fullmatch(entry.get("signature", ""))
    if not name.startswith("nccl") or not match or not PROPERTIES.issuperset(entry) or "since" not in entry:
        raise TableError(f"nccl.toml: {name}: needs since and signature = \"result (type name, ...)\"")
    parameters = [PARAMETER.fullmatch(text) for text in match[2].split(", ") if text]
    if None in parameters or entry.get("class", "early") != "early":
        raise TableError(f"nccl.toml: {name}: the signature has an invalid parameter, or class is not \"early\"")
    return Function(name, entry["since"], match[1], tuple((p[1], p[2]) for p in parameters), "class" in entry)


def load(path):
    with open(path, "rb") as file:
        return [function_of(name, entry) for name, entry in tomllib.load(file).items()]


def emit_functions(functions):
    lines = ["// The functions of NCCL, as api/table/nccl.toml describes them.\n", NOTICE,
             '#pragma once\n\n#include <cstddef>\n#include <cstdint>\n\n#include "common/nccl/nccl_api.h"\n\n'
             "namespace rcuda::nccl {\n\n// Null: the library lacks the function.\nstruct Functions {\n"]
    lines += [f"  {f.result} (*{f.name})({f.declared}) = nullptr;\n" for f in functions]
    lines.append("};\n\n// Looks each function up by its name.\n"
                 "template <typename Find>\nvoid load_functions(Functions* functions, const Find& find) {\n")
    lines += [f'  functions->{f.name} = reinterpret_cast<decltype(functions->{f.name})>(find("{f.name}"));\n'
              for f in functions]
    lines.append("}\n\n}  // namespace rcuda::nccl\n")
    return "".join(lines)


def emit_forwarded(functions):
    """Declares the functions that client/nccl defines."""
    lines = ["// The functions of NCCL that the client forwards.\n", NOTICE,
             '#pragma once\n\n#include "common/nccl/functions.h"\n\n'
             "namespace rcuda::client::nccl {\n\nusing namespace rcuda::nccl;\n\n"]
    lines += [f"{f.result} {f.name}({f.declared});\n" for f in functions]
    lines.append("\n}  // namespace rcuda::client::nccl\n")
    return "".join(lines)


def emit_exports(functions):
    """The functions of libnccl.so.2. The first call finds the client's table."""
    lines = [NOTICE, '#include "client/nccl_stub/client_functions.h"\n\n'
             '#define RCUDA_EXPORT extern "C" __attribute__((visibility("default")))\n\n'
             "using namespace rcuda::nccl;\n\n"]
    for f in functions:
        for name in (f.name, f"p{f.name}"):
            if f.early:
                lines.append(f"RCUDA_EXPORT {f.result} {name}({f.declared}) {{ return early::{f.name}({f.arguments}); }}\n")
                continue
            lines.append(f"RCUDA_EXPORT {f.result} {name}({f.declared}) {{\n"
                         "  const Functions* const functions = client_functions();\n"
                         f"  if (!functions) {FAILURES[f.result]}\n"
                         f"  if (!functions->{f.name}) {FAILURES[f.result].replace('2', '5')}\n"
                         f"  return functions->{f.name}({f.arguments});\n}}\n")
    return "".join(lines)


def emit_client(functions):
    """The client's table."""
    lines = [NOTICE, '#include "client/nccl/forwarded.h"\n\n'
             "namespace rcuda::client::nccl {\n\nextern const Functions kFunctions;\nconst Functions kFunctions = {\n"]
    lines += [f"    &{f.name},\n" for f in functions]
    lines.append("};\n\n}  // namespace rcuda::client::nccl\n")
    return "".join(lines)


def files(functions):
    return {"common/nccl/functions.h": emit_functions(functions), "client/nccl/forwarded.h": emit_forwarded(functions),
            "client/nccl_stub/exports.cpp": emit_exports(functions), "client/nccl/table.cpp": emit_client(functions)}
