"""Generates the worker's side: one handler per opcode, which decodes a command's body, looks up its
objects, calls the driver (or a handwritten serve_cuX) and encodes the results."""

from emit import NOTICE, fixup_function
from traits import FIRST_OPCODE


def emit_decode(function, types):
    """Reads the body in the order in which client.py wrote it."""
    lines = []
    for a in function.arguments:
        struct = types.structs.get(a.element)
        if a.form == "value" and a.type.endswith("*"):
            lines.append(f"  const auto {a.name} = reinterpret_cast<{a.type}>(in.value<uint64_t>());\n")
        elif a.form == "value":
            lines.append(f"  const auto {a.name} = in.value<{a.type}>();\n")
        elif a.form == "struct":
            lines.append(f"  auto {a.name} = in.value<{a.type}>();\n")
        elif a.form in ("handle", "destroy", "device"):
            lines.append(f"  const auto {a.name}_wire = in.value<uint32_t>();\n")
        elif a.form == "function":
            lines.append(f"  const auto {a.name}_wire = in.value<FunctionId>();\n")
        elif a.form == "string":
            lines.append(f"  const char* const {a.name} = in.string();\n")
            if not a.nullable:
                lines.append(f"  if ({a.name} == nullptr) in.reject();\n")
        elif a.form in ("in", "inout") and not a.count:
            lines.append(f"  {a.element} {a.name}_it{{}};\n")
            present = f"{a.name}_present"
            if a.nullable:
                lines.append(f"  const bool {present} = in.value<uint32_t>() != 0;\n  if ({present}) {{\n  ")
            lines.append(f"  {a.name}_it = in.value<{a.element}>();\n")
            for f in (struct.arrays if struct else []):
                lines.append(f"  auto {a.name}_{f.path} = copy_array<{f.type}>(in);\n"
                             f"  {a.name}_{f.member} = {a.name}_{f.path}.data();\n"
                             f"  if ({a.name}_{f.path}.size() != {a.name}_it.{f.count}) in.reject();\n")
            if a.nullable:
                lines.append("  }\n")
        elif a.form == "in":
            if a.nullable:
                lines.append(f"  const bool {a.name}_present = in.value<uint32_t>() != 0;\n")
            if a.kind:
                lines.append(f"  const auto {a.name}_wire = in.array<wire::ObjectId>();\n")
            elif a.element in types.structs:
                lines.append(f"  auto {a.name}_it = copy_array<{a.element}>(in);\n")
            else:
                lines.append(f"  const auto {a.name}_it = in.array<{a.element}>();\n")
        elif a.form in ("out", "named") and not a.count and a.nullable:
            lines.append(f"  const bool {a.name}_present = in.value<uint32_t>() != 0;\n")
        elif a.form in ("out", "named") and a.count:
            lines.append(f"  const auto {a.name}_room = in.value<uint32_t>();\n"
                         f"  if ({a.name}_room > kMaxReplyBytes / {a.element_bytes}) in.reject();\n")
            if a.count_from:
                lines.append(f"  const bool {a.name}_present = in.value<uint32_t>() != 0;\n")
                if not a.nullable:
                    lines.append(f"  if (!{a.name}_present) in.reject();\n")
    for a in function.arguments:
        if a.form == "create":
            lines.append(f"  const auto {a.name}_wire = in.value<wire::ObjectId>();\n")
    lines.append("  if (!in.complete()) return kMalformed;\n")
    return lines


def passed_count(a):
    """The array length that is passed to the driver."""
    return f"static_cast<uint64_t>({a.count})"


def emit_counts(function):
    """An input array must have the length that is passed to the driver, an output array at least this length."""
    lines = []
    for a in function.arguments:
        if a.form == "in" and a.count:
            size = f"{a.name}_wire.size()" if a.kind else f"{a.name}_it.size()"
            test = f"{size} != {passed_count(a)}"
            if a.nullable:
                test = f"{a.name}_present && {test}"
            lines.append(f"  if ({test}) return kMalformed;\n")
        elif a.form in ("out", "named") and a.count and not a.count_from:
            if a.nullable:
                test = f"{a.name}_room != 0 && {a.name}_room < {passed_count(a)}"
            else:
                test = f"{a.name}_room < {passed_count(a)}"
            lines.append(f"  if ({test}) return kMalformed;\n")
    for a in function.arguments:
        if a.form in ("out", "named") and a.count_from:
            lines.append(f"  if ({a.name}_present) {{\n"
                         f"    {a.count}_it = std::min<size_t>({a.count}_it, {a.name}_room);\n  }}\n")
    return lines


def emit_lookups(function, types):
    lines = []
    for a in function.arguments:
        required = "false" if a.nullable else "true"
        if a.form in ("handle", "destroy"):
            lines.append(f"  const auto {a.name} = objects.find<{a.type}>(wire::Kind::k{a.kind}, "
                         f"{a.name}_wire, {required});\n")
        elif a.form == "function":
            lines.append(f"  const auto {a.name} = objects.find_function({a.name}_wire);\n")
        elif a.form == "device":
            lines.append(f"  const CUdevice {a.name} = objects.find_device({a.name}_wire);\n")
        elif a.form == "struct":
            lines.append(f"  objects.fix(from_wire({a.name}, executor));\n")
        elif a.form == "in" and a.count and a.kind:
            lines.append(f"  auto {a.name}_it = objects.find_all<{a.element}>"
                         f"(wire::Kind::k{a.kind}, {a.name}_wire);\n")
        elif a.form in ("in", "inout") and a.element in types.structs:
            struct = types.structs[a.element]
            if a.count:
                lines.append(f"  for (auto& it : {a.name}_it) objects.fix(from_wire(it, executor));\n")
            else:
                lines.append(f"  objects.fix(from_wire({a.name}_it, executor));\n")
            for f in struct.arrays:
                if f.type in types.structs:
                    lines.append(f"  for (auto& it : {a.name}_{f.path}) "
                                 "objects.fix(from_wire(it, executor));\n")
    if lines:
        lines = ["  Objects objects(executor);\n"] + lines
        lines.append("  if (objects.failed()) return {objects.result()};\n")
    return lines


def emit_locals(function):
    lines = []
    for a in function.arguments:
        if a.form in ("create", "named") and not a.count:
            lines.append(f"  {a.element} {a.name}_it{{}};\n")
        elif a.form == "blob" or a.form == "out" and not a.count:
            lines.append(f"  {a.element} {a.name}_it{{}};\n")
        elif a.form in ("out", "named"):
            # An empty vector's address is null, and drivers distinguish a null pointer from an empty array. So the
            # vector has one element at least.
            room = f"std::max<size_t>({a.name}_room, 1)" if a.count_from else f"{a.name}_room"
            lines.append(f"  std::vector<{a.element}> {a.name}_it({room});\n")
    return lines


def driver_argument(a, types):
    if a.form in ("value", "struct", "handle", "destroy", "device", "string", "function"):
        return a.name
    if a.form == "null":
        return "nullptr"
    if a.form == "in" and a.count:
        pointer = f"{a.name}_it.data()"
        if not a.type.startswith("const ") and a.type.rstrip("*").strip() != "void" and \
                not a.kind and a.element not in types.structs:
            pointer = f"const_cast<{a.element}*>({pointer})"
        elif a.type == "void*":
            pointer = f"const_cast<char*>({pointer})"
        return f"{a.name}_present ? {pointer} : nullptr" if a.nullable else pointer
    if a.form in ("out", "named") and a.count:
        if a.count_from:
            return f"{a.name}_present ? {a.name}_it.data() : nullptr"
        if a.nullable:
            return f"{a.name}_room != 0 ? {a.name}_it.data() : nullptr"
        return f"{a.name}_it.data()"
    if a.nullable:
        return f"{a.name}_present ? &{a.name}_it : nullptr"
    return f"&{a.name}_it"


def emit_outputs(function, types):
    lines = []
    for a in function.arguments:
        if a.form == "named" and a.count:
            size = f"std::min<size_t>({a.count}_it, {a.name}_room)" if a.count_from else f"{a.name}_room"
            if a.count_from:
                size = f"{a.name}_present ? {size} : 0"
            lines.append(f"  encode_names(executor, out, wire::Kind::k{a.kind}, {a.name}_it.data(), {size});\n")
        elif a.form == "named":
            lines.append(f"  out.value(name(executor, wire::Kind::k{a.kind}, to_pointer({a.name}_it)));\n")
        elif a.form == "out" and a.count:
            size = f"std::min<size_t>({a.count}_it, {a.name}_room)" if a.count_from else f"{a.name}_room"
            if a.count_from:
                size = f"{a.name}_present ? {size} : 0"
            lines.append(f"  out.array({a.name}_it.data(), {size});\n")
        elif a.form == "blob":
            lines.append(f"  encode_blob(executor, out, std::move({a.name}_it));\n")
        elif a.form in ("out", "inout"):
            if a.element in types.structs:
                lines.append(f"  to_wire({a.name}_it, executor);\n")
            lines.append(f"  out.value({a.name}_it);\n")
    return lines


def serve_declaration(function):
    rest = "".join(f", {p.type} {p.name}" for p in function.prototype.parameters)
    if function.served_in_api:
        first = "const api::DriverTable& table"
    else:
        first = f"{function.family.capitalize()}Services& services"
    return f"CUresult serve_{function.name}({first}{rest})"


def served_families(table):
    """The families whose services a handwritten function gets."""
    return sorted({f.family for f in table.functions.values()
                   if f.travels and f.handwritten_server and not f.served_in_api})


def serve_call(function, arguments):
    first = "driver" if function.served_in_api else f"{function.family}_services"
    return f"serve_{function.name}({', '.join([f'{first}(executor)'] + arguments)})"


def emit_function(function, types):
    lines = [f"HandlerResult handle_{function.name}([[maybe_unused]] Executor& executor, "
             "const wire::CommandHeader&, [[maybe_unused]] wire::Decoder& in, "
             "[[maybe_unused]] wire::Encoder& out) {\n"]
    lines += emit_decode(function, types)
    lines += emit_counts(function)
    if not function.handwritten_server:
        candidates = "".join(f", driver(executor).{name}" for name in function.older)
        lines.append(f"  const auto function = first_of(driver(executor).{function.name}{candidates});\n"
                     "  if (function == nullptr) return {CUDA_ERROR_NOT_SUPPORTED};\n")
    lines += emit_lookups(function, types)
    lines += emit_locals(function)
    arguments = [driver_argument(a, types) for a in function.arguments]
    if function.handwritten_server:
        call = serve_call(function, arguments)
    else:
        call = f"function({', '.join(arguments)})"
    after = []
    for a in function.arguments:
        if a.form == "destroy":
            # If the driver refuses a call, the client keeps the object, so its id stays bound. A post has no answer:
            # the client always retires the object, so the id is always unbound.
            kept = "if (is_gone(result)) " if function.klass == "call" else ""
            after.append(f"  {kept}unbind(executor, wire::Kind::k{a.kind}, {a.name}_wire);\n")
        elif a.form == "create":
            after.append(f"  if (result == CUDA_SUCCESS && !bind(executor, wire::Kind::k{a.kind}, "
                         f"{a.name}_wire, to_pointer({a.name}_it))) {{\n    return kMalformed;\n  }}\n")
    outputs = emit_outputs(function, types)
    if function.server_after:
        after.insert(0, f"  {function.server_after}\n")
    if not after and not outputs:
        lines.append(f"  return {{{call}}};\n}}\n\n")
        return "".join(lines)
    lines.append(f"  const CUresult result = {call};\n")
    lines += after
    if outputs and not function.always_outputs:
        lines.append("  if (result != CUDA_SUCCESS) return {result};\n")
    lines += outputs
    lines.append("  return {result};\n}\n\n")
    return "".join(lines)


def emit_family(table, family):
    functions = [f for f in table.functions.values() if f.family == family and f.travels]
    lines = [NOTICE, '#include <algorithm>\n#include <utility>\n#include <vector>\n\n#include "api/driver_table.h"\n'
             '#include "api/server_fixups.h"\n#include "api/server_handlers.h"\n'
             '#include "server/executor/calls/call.h"\n\nnamespace rcuda::server {\n\n']
    lines += [emit_function(f, table.types) for f in functions]
    lines.append("}  // namespace rcuda::server\n")
    return "".join(lines)


def emit_handlers_header(table):
    lines = [NOTICE, '#pragma once\n\n#include "server/executor/core/dispatch.h"\n\n'
             "namespace rcuda::server {\n\n"
             "// The services of handwritten functions, by family (services.h).\n"]
    for family in served_families(table):
        services = f"{family.capitalize()}Services"
        lines.append(f"struct {services};\n{services}& {family}_services(Executor& executor);\n")
    lines.append("\n// Handwritten, in server/executor: functions that run in place of the driver function.\n"
                 "// Handles are the driver's; an output pointer is null only where the parameter is optional.\n")
    for f in table.functions.values():
        if f.travels and f.handwritten_server:
            lines.append(serve_declaration(f) + ";\n")
    lines.append("\n// Generated.\n")
    for f in table.functions.values():
        if f.travels:
            lines.append(f"HandlerResult handle_{f.name}(Executor& executor, "
                         "const wire::CommandHeader& header, wire::Decoder& in, wire::Encoder& out);\n")
    lines.append("\n}  // namespace rcuda::server\n")
    return "".join(lines)


def emit_dispatch(table):
    travelling = {f.opcode: f for f in table.functions.values() if f.travels}
    lines = [NOTICE, '#include <iterator>\n\n#include "api/server_handlers.h"\n'
             '#include "common/wire/protocol.h"\n\nnamespace rcuda::server {\nnamespace {\n\n'
             "// By opcode, from kFirstGenerated; the holes are retired opcodes.\n"
             "const HandlerEntry kHandlers[] = {\n"]
    for opcode in range(FIRST_OPCODE, max(travelling, default=FIRST_OPCODE) + 1):
        f = travelling.get(opcode)
        if f is None:
            lines.append("    {},\n")
        else:
            posted = "true" if f.klass == "post" else "false"
            lines.append(f'    {{&handle_{f.name}, "{f.name}", {posted}}},\n')
    lines.append("""};

}  // namespace

const HandlerEntry* generated_handler(uint16_t opcode) {
  constexpr uint16_t kFirst = static_cast<uint16_t>(wire::Custom::kFirstGenerated);
  if (opcode < kFirst || opcode - kFirst >= static_cast<int>(std::size(kHandlers))) return nullptr;
  const HandlerEntry* entry = &kHandlers[opcode - kFirst];
  return entry->handler == nullptr ? nullptr : entry;
}

}  // namespace rcuda::server
""")
    return "".join(lines)


def emit_fixups(table):
    lines = [NOTICE, '#pragma once\n\n#include <cuda.h>\n\n#include "server/executor/calls/call.h"\n\n'
             "namespace rcuda::server {\n\n"]
    for struct in table.types.structs.values():
        lines += [fixup_function(struct, table.types, "from_wire", "Executor& executor", "CUresult",
                                 lambda f: f.form == "null" or f.direction == "out",
                                 lambda f: f.form in ("location", "devices", "handle", "callback")),
                  fixup_function(struct, table.types, "to_wire", "Executor& executor", "void",
                                 lambda f: f.form in ("null", "array", "callback") or f.direction == "in",
                                 lambda f: f.form in ("location", "handle")), "\n"]
    lines.append("}  // namespace rcuda::server\n")
    return "".join(lines)
