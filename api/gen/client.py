"""Generates the client's side of every command: forward_cuX, which sends the command and
reads the answer, and the entry point cuX unless it is handwritten."""

from emit import NOTICE, fixup_function

def emit_header(table):
    lines = ["""// forward_cuX: runs driver function cuX on a worker.
//
// Generated entry points only call these functions; handwritten entry points call them to send the
// message. A call goes to the worker and context of its handles, device or address, else to the
// current context. The client assigns ids to the objects that a call creates, and releases the ids
// if the call fails. It also releases the ids of destroyed objects. Posted functions return what
// post() returns. `owner`: the route of the address, from a caller that has removed the address
// from the registry; null: the function looks the address up there. Any thread; blocks as post()
// and call() do.
""", NOTICE, """#pragma once

#include <cuda.h>

#include "api/blob.h"
#include "client/session/route.h"

namespace rcuda::client {

using api::Blob;

"""]
    for function in table.functions.values():
        if function.travels:
            owner = ", const Route* owner = nullptr" if function.owner else ""
            lines.append(f"CUresult forward_{function.name}({function.prototype.parameter_list}{owner});\n")
    lines.append("\n// Functions that are sent as a call of another function.\n")
    for function in table.functions.values():
        if function.alias:
            lines.append(f"inline CUresult forward_{function.name}"
                         f"({function.prototype.parameter_list}) {{\n"
                         f"  return forward_{function.alias};\n}}\n")
    lines.append("\n}  // namespace rcuda::client\n")
    return "".join(lines)


def count_expression(argument):
    """The number of elements in the application's array."""
    if argument.count_from:
        return f"({argument.count_from} != nullptr ? static_cast<size_t>(*{argument.count_from}) : 0)"
    return f"static_cast<size_t>({argument.count})"


def emit_checks(function):
    lines = []
    for a in function.arguments:
        if a.form == "null":
            lines.append(f"  call.unsupported_unless(({a.name}) == nullptr, \"{a.name} of {function.name}\");\n")
        elif a.form in ("in", "out", "inout", "create", "named", "string", "blob") and not a.nullable:
            if a.count and not a.count_from:
                lines.append(f"  call.require({a.name} != nullptr || ({a.count}) == 0);\n")
            else:
                lines.append(f"  call.require({a.name} != nullptr);\n")
    return lines


def emit_routing(function, types):
    """Resolves handles and devices. Streams come first, because a null stream is the default stream of
    the current context. Devices come before other handles: a kernel or library has no worker of its own,
    so it must not choose the route of a call that names a device."""
    lines = []
    owner = ", owner" if function.owner else ""
    by_value = [a for a in function.arguments
                if a.form in ("handle", "function", "destroy", "device")]
    if function.route in ("current", "anywhere"):
        lines.append(f"  call.route_{function.route}();\n")
    elif function.route.startswith("location:"):
        lines.append("  if (call.failed()) return call.result();\n"
                     f"  call.route_location({function.route.removeprefix('location:')});\n")
    elif function.route != "auto":
        lines.append(f"  call.route_address({function.route}{owner});\n")
    by_value.sort(key=lambda a: (a.kind != "Stream", a.form != "device"))
    for a in by_value:
        if a.form == "device":
            lines.append(f"  const uint32_t {a.name}_wire = call.device({a.name});\n")
        elif a.form == "function":
            lines.append(f"  const FunctionId {a.name}_wire = call.function({a.name});\n")
        elif a.kind == "Stream" and a.nullable and function.stream_near:
            lines.append(f"  const wire::ObjectId {a.name}_wire = "
                         f"call.stream_near({a.name}, {function.stream_near}{owner});\n")
        elif a.kind == "Stream" and a.nullable:
            lines.append(f"  const wire::ObjectId {a.name}_wire = call.stream({a.name});\n")
        else:
            null = "CUDA_SUCCESS" if a.nullable else types.null_results[a.type]
            lines.append(f"  const wire::ObjectId {a.name}_wire = "
                         f"call.handle({a.name}, wire::Kind::k{a.kind}, {null});\n")
    lines.append("  call.route_current();\n")
    return lines


def emit_struct_input(a, struct, types, lines):
    """One struct with fixups, followed by the arrays that it points to."""
    lines.append(f"    auto it = *{a.name};\n    call.fix(to_wire(it, call));\n")
    for f in struct.arrays:
        lines.append(f"    {f.member} = nullptr;\n")
    lines.append("    in.value(it);\n")
    for f in struct.arrays:
        call = "structs" if f.type in types.structs else "array"
        lines.append(f"    call.{call}({a.name}->{f.path}, {a.name}->{f.count});\n")


def emit_inputs(function, types):
    lines = []
    arrays = sum(1 for a in function.arguments if a.form in ("out", "named") and a.count)
    for a in function.arguments:
        struct = types.structs.get(a.element)
        if a.form == "value":
            lines.append(f"  in.value({cast_pointer(a)});\n")
        elif a.form == "struct":
            lines.append(f"  {{\n    auto it = {a.name};\n    call.fix(to_wire(it, call));\n"
                         "    in.value(it);\n  }\n")
        elif a.form in ("handle", "destroy", "device", "function"):
            lines.append(f"  in.value({a.name}_wire);\n")
        elif a.form == "string":
            lines.append(f"  in.string({a.name});\n")
        elif a.form in ("in", "inout") and not a.count:
            if a.nullable:
                lines.append(f"  in.value<uint32_t>({a.name} != nullptr);\n"
                             f"  if ({a.name} != nullptr) {{\n")
            else:
                lines.append("  {\n")
            if struct:
                emit_struct_input(a, struct, types, lines)
            else:
                lines.append(f"    in.value(*{a.name});\n")
            lines.append("  }\n")
        elif a.form == "in":
            count = count_expression(a)
            if a.nullable:
                lines.append(f"  in.value<uint32_t>({a.name} != nullptr);\n")
                count = f"{a.name} != nullptr ? {count} : 0"
            if a.kind:
                lines.append(f"  call.handles({a.name}, {count}, wire::Kind::k{a.kind});\n")
            elif a.element in types.structs:
                lines.append(f"  call.structs({a.name}, {count});\n")
            else:
                lines.append(f"  call.array({byte_pointer(a, True)}, {count});\n")
        elif a.form in ("out", "named") and not a.count and a.nullable:
            # A null pointer is passed to the driver, which answers as it does locally.
            lines.append(f"  in.value<uint32_t>({a.name} != nullptr);\n")
        elif a.form in ("out", "named") and a.count:
            # The number of requested elements; 0 if the array is null.
            room = "room" if a.count_from else "whole"
            lines.append(f"  const uint32_t {a.name}_room = call.{room}({a.name} != nullptr ? "
                         f"{count_expression(a)} : 0, {a.element_bytes}, {arrays});\n"
                         f"  in.value({a.name}_room);\n")
            if a.count_from:
                lines.append(f"  in.value<uint32_t>({a.name} != nullptr);\n")
    return lines


def cast_pointer(a):
    if a.type.endswith("*"):
        return f"reinterpret_cast<uint64_t>({a.name})"
    return a.name


def byte_pointer(a, const):
    pointee = a.type.removesuffix("*").removeprefix("const ").strip()
    if pointee == "void":
        return f"static_cast<{'const ' if const else ''}char*>({a.name})"
    return a.name


def emit_creates(function):
    lines = []
    for a in function.arguments:
        if a.form == "create":
            lines.append(f"  void* {a.name}_handle = nullptr;\n"
                         f"  in.value(call.create(wire::Kind::k{a.kind}, &{a.name}_handle));\n")
    return lines


def reply_bytes(function):
    terms = []
    for a in function.arguments:
        if a.form == "blob":
            terms.append("32 + api::kBlobPieceBytes")
        elif a.form in ("out", "inout", "named"):
            if a.count:
                terms.append(f"16 + {a.name}_room * {a.element_bytes}")
            else:
                terms.append(f"8 + {a.element_bytes}")
    return " + ".join(terms) or "0"


def emit_outputs(function, types):
    lines = []
    for a in function.arguments:
        struct = types.structs.get(a.element)
        if a.form == "named" and a.count:
            lines.append(f"  call.wrap_ids({a.name}, {a.name}_room, wire::Kind::k{a.kind});\n")
        elif a.form == "named":
            lines.append(f"  {{\n    void* it = call.wrap_id(wire::Kind::k{a.kind});\n"
                         f"    if ({a.name} != nullptr) *{a.name} = from_pointer<{a.element}>(it);\n"
                         "  }\n")
        elif a.form == "out" and a.count:
            lines.append(f"  call.take_array({byte_pointer(a, False)}, {a.name}_room);\n")
        elif a.form == "blob":
            lines.append(f"  call.take_blob({a.name});\n")
        elif a.form in ("out", "inout"):
            lines.append(f"  {{\n    auto it = call.out().value<{a.element}>();\n")
            if struct:
                lines.append("    from_wire(it, call);\n")
                for f in struct.kept if a.form == "inout" else []:
                    lines.append(f"    {f.member} = {a.name}->{f.path};\n")
            # A driver never reports more elements than fit into the array. rcuda's own commands
            # may: the caller then repeats the call.
            counted = [b.name for b in function.arguments if b.count_from == a.name]
            if a.form == "inout" and counted and function.is_driver:
                given = " || ".join(f"{name} != nullptr" for name in counted)
                lines.append(f"    if ({a.name} != nullptr && ({given}) && it > *{a.name}) call.out().reject();\n")
            lines.append(f"    if ({a.name} != nullptr && call.out().ok()) *{a.name} = it;\n  }}\n")
    return lines


def emit_function(function, types):
    owner = ", const Route* owner" if function.owner else ""
    lines = [f"CUresult forward_{function.name}({function.prototype.parameter_list}{owner}) {{\n"
             "  Call call;\n"]
    lines += emit_checks(function)
    lines += emit_routing(function, types)
    lines.append("  if (call.failed()) return call.result();\n")
    if any(a.kind == "Stream" and a.form in ("handle", "destroy") for a in function.arguments):
        lines.append("  call.pace();\n")
    inputs = emit_inputs(function, types) + emit_creates(function)
    if inputs:
        lines.append("  [[maybe_unused]] wire::Encoder& in = call.in();\n")
    lines += inputs
    opcode = f"api::Opcode::{function.name}"
    # A posted command may return an earlier error although it was sent and its object exists.
    created = "".join(
        f"  if ({a.name}_handle) *{a.name} = from_pointer<{a.element}>({a.name}_handle);\n"
        for a in function.arguments if a.form == "create")
    # A call keeps an object that the driver refused to destroy. A posted command has no answer, so its
    # object is always retired.
    is_call = function.klass == "call"
    destroyed = "".join(
        f"  call.retire_if_gone({a.name}, wire::Kind::k{a.kind}, result);\n" if is_call else
        f"  retire(to_pointer({a.name}), wire::Kind::k{a.kind});\n"
        for a in function.arguments if a.form == "destroy")
    outputs = emit_outputs(function, types)
    send = f"call.post({opcode})" if function.klass == "post" and not outputs else \
        f"call.call({opcode}, {reply_bytes(function)})"
    if not (outputs or created or destroyed):
        lines.append(f"  return {send};\n}}\n\n")
        return "".join(lines)
    lines.append(f"  const CUresult result = {send};\n")
    lines.append(destroyed)
    if outputs:
        if function.always_outputs:
            lines.append("  if (!call.answered()) return result;\n")
        else:
            lines.append("  if (result != CUDA_SUCCESS) return result;\n")
        lines += outputs
        lines.append("  if (!call.out().complete()) return call.bad_reply();\n")
        lines += [f"  if (CUresult read = call.read_rest({a.name}); read != CUDA_SUCCESS) return read;\n"
                  for a in function.arguments if a.form == "blob"]
    lines.append(created)
    lines.append("  return result;\n}\n\n")
    return "".join(lines)


def emit_entry(function):
    names = ", ".join(p.name for p in function.prototype.parameters)
    if function.constant:
        types = ", ".join(function.prototype.types)
        return f"CUresult {function.name}({types}) {{ return {function.constant}; }}\n"
    return (f"CUresult {function.name}({function.prototype.parameter_list}) {{\n"
            f"  return rcuda::client::forward_{function.name}({names});\n}}\n")


def emit_family(table, family):
    functions = [f for f in table.functions.values() if f.family == family and f.travels]
    lines = [NOTICE, '#include <cuda.h>\n#include <cudaProfiler.h>\n\n#include "api/client_fixups.h"\n'
             '#include "api/opcodes.h"\n#include "client/forward/call.h"\n'
             '#include "client/forward.h"\n\nnamespace rcuda::client {\n\n']
    lines += [emit_function(f, table.types) for f in functions]
    lines.append("}  // namespace rcuda::client\n\n")
    lines.append('#pragma GCC visibility push(default)\nextern "C" {\n')
    lines += [emit_entry(f) for f in table.functions.values()
              if f.family == family and not f.handwritten_client]
    lines.append('}  // extern "C"\n#pragma GCC visibility pop\n')
    return "".join(lines)


def emit_fixups(table):
    """to_wire and from_wire of structs with members that cannot be sent unchanged."""
    lines = [NOTICE, '#pragma once\n\n#include <cuda.h>\n\n#include "client/forward/call.h"\n\n'
             "namespace rcuda::client {\n\n"]
    for struct in table.types.structs.values():
        lines += [fixup_function(struct, table.types, "to_wire", "Call& call", "CUresult",
                                 lambda f: f.form == "null" or f.direction == "out",
                                 lambda f: f.form in ("location", "devices", "handle")),
                  fixup_function(struct, table.types, "from_wire", "const Call& call", "void",
                                 lambda f: f.form == "null",
                                 lambda f: f.form == "location" or f.form == "handle" and f.direction != "in"), "\n"]
    lines.append("}  // namespace rcuda::client\n")
    return "".join(lines)
