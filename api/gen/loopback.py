"""Generates a test of every command: the client's call goes to the worker's handler, which calls a
recording driver. The driver must get the application's arguments, and the application must get the
driver's answer. The rest of the test is tests/unit/api/loopback.h."""

import re

import server
from emit import NOTICE


def is_tested(function):
    return function.travels and function.is_driver


def counting_names(function):
    """Parameters from which array lengths are computed."""
    names = set()
    for a in function.arguments:
        names |= set(re.findall(r"[A-Za-z_]\w*", a.count))
    return names


def emit_record(function, types):
    """The inputs as one side sees them."""
    lines = []
    for a in function.arguments:
        if a.form in ("handle", "destroy", "function"):
            lines.append(f"  record.handle(to_pointer({a.name}), wire::Kind::k{a.kind});\n")
        elif a.form == "device":
            lines.append(f"  record.device({a.name});\n")
        elif a.form == "value":
            lines.append(f"  record.value({a.name});\n")
        elif a.form == "struct":
            lines.append(f"  record.structure({a.name});\n")
        elif a.form == "string":
            lines.append(f"  record.string({a.name});\n")
        elif a.form == "null":
            lines.append(f"  record.null({a.name});\n")
        elif a.form in ("in", "inout"):
            count = f"static_cast<size_t>({a.count})" if a.count else "1"
            pointer = a.name
            if a.element == "char":
                const = "const " if a.type.startswith("const ") else ""
                pointer = f"static_cast<{const}char*>({a.name})"
            if a.kind:
                lines.append(f"  record.handles({pointer}, {count}, wire::Kind::k{a.kind});\n")
            elif a.element in types.structs:
                lines.append(f"  record.structures({pointer}, {count});\n")
            else:
                lines.append(f"  record.values({pointer}, {count});\n")
    return lines


def emit_recorder(function, types):
    lines = [f"CUresult driver_{function.name}({function.prototype.parameter_list}) {{\n"
             "  Record record(Side::kWorker);\n"]
    lines += emit_record(function, types)
    lines.append("  Recorded::get().seen = record.text();\n")
    for a in function.arguments:
        pointer = f"static_cast<char*>({a.name})" if a.type == "void*" else a.name
        count = f"{a.name} == nullptr ? 0 : 1" if a.nullable else "1"
        if a.count_from:
            count = f"{a.name} == nullptr ? 0 : std::min<size_t>(2, *{a.count})"
        elif a.count:
            count = f"static_cast<size_t>({a.count})"
        if a.form in ("create", "named"):
            lines.append(f"  answer_handles({a.name}, {count}, wire::Kind::k{a.kind});\n")
        elif a.form == "out":
            kind = "structures" if a.element in types.structs else "values"
            lines.append(f"  answer_{kind}({pointer}, {count});\n")
    for a in function.arguments:
        if a.form == "inout" and any(b.count_from == a.name for b in function.arguments):
            lines.append(f"  *{a.name} = 2;\n")
    lines.append("  return CUDA_SUCCESS;\n}\n\n")
    return "".join(lines)


def emit_arguments(function, types):
    """Sample arguments of a call."""
    counts = counting_names(function)
    lines = []
    for i, a in enumerate(function.arguments):
        seed = i + 3
        if a.form in ("handle", "destroy", "function"):
            lines.append(f"  {a.type} {a.name} = client_handle<{a.type}>(wire::Kind::k{a.kind}, {seed});\n")
        elif a.form == "device":
            lines.append(f"  CUdevice {a.name} = kClientDevice;\n")
        elif a.form == "value":
            small = "true" if a.name in counts else "false"
            lines.append(f"  {a.type} {a.name} = sample<{a.type}>({seed}, {small});\n")
        elif a.form == "struct":
            lines.append(f"  {a.type} {a.name} = sample_structure<{a.type}>({seed});\n")
        elif a.form == "string":
            lines.append(f'  const char* {a.name} = "text {seed}";\n')
        elif a.form == "null":
            lines.append(f"  {a.type} {a.name} = nullptr;\n")
        elif a.form == "inout" and any(b.count_from == a.name for b in function.arguments):
            lines.append(f"  {a.element} {a.name}_storage = 3;\n  auto* {a.name} = &{a.name}_storage;\n")
        elif a.form == "blob":
            lines.append(f"  client::Blob {a.name}_storage;\n  auto* {a.name} = &{a.name}_storage;\n")
        elif a.kind:
            lines.append(f"  auto {a.name}_storage = client_handles<{a.element}>(wire::Kind::k{a.kind}, {seed});\n"
                         f"  auto* {a.name} = {a.name}_storage.data();\n")
        elif a.element in types.structs:
            lines.append(f"  auto {a.name}_storage = sample_structures<{a.element}>({seed});\n"
                         f"  auto* {a.name} = {a.name}_storage.data();\n")
        else:
            lines.append(f"  auto {a.name}_storage = samples<{a.element}>({seed});\n"
                         f"  auto* {a.name} = {a.name}_storage.data();\n")
    return lines


def is_answered(function):
    return function.travels and function.klass != "post"


def emit_hostile(function, types):
    """A function that makes the call, for tests in which the worker may send any answer."""
    names = ", ".join(a.name for a in function.arguments)
    # Arguments with a fixed number of elements.
    sized = [f"  {a.name}_storage.resize({a.count});\n  {a.name} = {a.name}_storage.data();\n"
             for a in function.arguments if a.count.isdigit()]
    return "".join([f"void answer_{function.name}() {{\n", *emit_arguments(function, types), *sized,
                    f"  (void)client::forward_{function.name}({names});\n}}\n\n"])


def emit_test(function, types):
    lines = [f"void sample_{function.name}() {{\n"
             f"  Recorded::get().driver.{function.name} = &driver_{function.name};\n"]
    lines += emit_arguments(function, types)
    lines.append("  Record record(Side::kClient);\n")
    lines += emit_record(function, types)
    names = ", ".join(a.name for a in function.arguments)
    lines.append(f"  EXPECT_EQ(client::forward_{function.name}({names}), CUDA_SUCCESS);\n"
                 "  EXPECT_EQ(Recorded::get().seen, record.text());\n")
    for a in function.arguments:
        count = "1"
        if a.count:
            count = "2" if a.count_from else f"static_cast<size_t>({a.count})"
        pointer = f"static_cast<char*>({a.name})" if a.type == "void*" else a.name
        if a.form == "named":
            lines.append(f"  expect_named({a.name}, {count}, wire::Kind::k{a.kind});\n")
            if a.count_from:
                lines.append(f"  EXPECT_EQ({a.name}[2], nullptr);\n")
        elif a.form == "create":
            lines.append(f"  expect_created(*{a.name}, wire::Kind::k{a.kind});\n")
        elif a.form == "destroy":
            lines.append(f"  expect_destroyed(to_pointer({a.name}), wire::Kind::k{a.kind});\n")
        elif a.form == "inout" and any(b.count_from == a.name for b in function.arguments):
            lines.append(f"  EXPECT_EQ(*{a.name}, 2u);\n")
        elif a.form == "out":
            kind = "structures" if a.element in types.structs else "values"
            lines.append(f"  expect_{kind}({pointer}, {count});\n")
    lines.append("}\n"
                 f"TEST_F(LoopbackTest, {function.name}) {{ sample_{function.name}(); }}\n\n")
    return "".join(lines)


def emit_structures(table):
    """fill() and normalise() of structs with members that are translated."""
    lines = []
    for struct in table.types.structs.values():
        lines.append(f"void fill({struct.name}& it, [[maybe_unused]] uint32_t seed) {{\n"
                     "  std::memset(&it, 0, sizeof(it));\n")
        for f in struct.fixups:
            guard = f"if ({f.when}) " if f.when else ""
            if f.form == "handle":
                lines.append(f"  {guard}{f.member} = client_handle<{f.type}>"
                             f"(wire::Kind::k{table.types.handles[f.type]}, seed + 1);\n")
            elif f.form == "location":
                lines.append(f"  {guard}{f.member} = client_location();\n")
            elif f.form == "devices":
                lines.append(f"  {guard}{f.member} = client_devices();\n")
            elif f.form == "array":
                maker = "sample_structures" if f.type in table.types.structs else "samples"
                lines.append(f"  static auto {f.path}_storage = {maker}<{f.type}>(seed + 2);\n"
                             f"  {f.member} = {f.path}_storage.data();\n  it.{f.count} = 2;\n")
        lines.append("}\n")
        lines.append(f"void normalise({struct.name}& it, [[maybe_unused]] Record& record) {{\n"
                     "  (void)it;\n")
        for f in struct.fixups:
            guard = f"if ({f.when}) " if f.when else ""
            if f.form == "handle" and f.direction == "out":
                lines.append(f"  {guard}{f.member} = {{}};\n")
            elif f.form == "handle":
                lines.append(f"  {guard}{f.member} = record.plain({f.member}, "
                             f"wire::Kind::k{table.types.handles[f.type]});\n")
            elif f.form == "location":
                lines.append(f"  {guard}record.plain_location({f.member});\n")
            elif f.form == "devices":
                lines.append(f"  {guard}record.plain_devices({f.member});\n")
            elif f.form == "array":
                call = "structures" if f.type in table.types.structs else "values"
                lines.append(f"  record.{call}({f.member}, it.{f.count});\n  {f.member} = nullptr;\n")
            elif f.form in ("null", "callback"):
                lines.append(f"  {guard}{f.member} = {{}};\n")
        lines.append("}\n\n")
    return "".join(lines)


def emit(table):
    tested = [f for f in table.functions.values() if is_tested(f)]
    lines = [NOTICE, '#include <cuda.h>\n#include <gtest/gtest.h>\n\n#include <algorithm>\n\n#include "api/server_handlers.h"\n#include "client/forward.h"\n'
             '#include "tests/unit/api/loopback.h"\n\nnamespace rcuda::loopback {\nnamespace {\n\n'
             "using api::pool_attribute_bytes;\nusing api::tensor_elements;\nusing api::to_pointer;\n\n"]
    for struct in table.types.structs.values():
        lines.append(f"void fill({struct.name}& it, uint32_t seed);\n"
                     f"void normalise({struct.name}& it, Record& record);\n")
    lines.append("\n}  // namespace\n}  // namespace rcuda::loopback\n\n"
                 '#include "tests/unit/api/loopback_inline.h"\n\n'
                 "namespace rcuda::loopback {\nnamespace {\n\n")
    lines.append(emit_structures(table))
    for f in tested:
        lines.append(emit_recorder(f, table.types))
        lines.append(emit_test(f, table.types))
    answered = [f for f in table.functions.values() if is_answered(f)]
    lines += [emit_hostile(f, table.types) for f in answered]
    handwritten = [f for f in tested if f.handwritten_server and not f.served_in_api]
    lines.append("const Sample kCommands[] = {\n")
    lines += [f"    {{0x{f.opcode:03x}, &sample_{f.name}}},\n" for f in tested]
    lines.append("};\nconst Sample kAnswered[] = {\n")
    lines += [f"    {{0x{f.opcode:03x}, &answer_{f.name}}},\n" for f in answered]
    lines.append("};\n\n}  // namespace\n\n"
                 "std::span<const Sample> samples_of_commands() { return kCommands; }\n"
                 "std::span<const Sample> samples_of_answers() { return kAnswered; }\n\n"
                 "}  // namespace rcuda::loopback\n\nnamespace rcuda::server {\n\n"
                 "// These functions replace those of server/executor.\n"
                 '#pragma GCC diagnostic ignored "-Wunused-parameter"\n')
    for f in handwritten:
        names = ", ".join(p.name for p in f.prototype.parameters)
        lines.append(f"{server.serve_declaration(f)} {{\n"
                     f"  return loopback::Recorded::get().driver.{f.name}({names});\n}}\n")
    for f in table.functions.values():
        if f.travels and not f.is_driver and not f.served_in_api:
            declaration = server.serve_declaration(f)
            lines.append(f"{declaration} {{\n  return CUDA_ERROR_NOT_SUPPORTED;\n}}\n")
    lines.append("\n}  // namespace rcuda::server\n")
    return "".join(lines)
