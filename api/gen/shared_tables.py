"""Generates the parts shared by both sides and the tools: opcodes, their names, the hashes of commands."""

import hashlib
import re

from emit import NOTICE


def by_opcode(table):
    return sorted((f for f in table.functions.values() if f.travels), key=lambda f: f.opcode)


def emit_opcodes(table):
    lines = ["// Opcodes of the generated commands; the opcodes of common/wire/commands.h are smaller.\n",
             NOTICE, "#pragma once\n\n#include <cstdint>\n\nnamespace rcuda::api {\n\n"
             "enum class Opcode : uint16_t {\n"]
    lines += [f"  {f.name} = 0x{f.opcode:03x},\n" for f in by_opcode(table)]
    lines.append("""};

// "cuMemAlloc_v2"; custom commands by their name in the table: "CopyInline". Never null.
const char* opcode_name(uint16_t opcode);

}  // namespace rcuda::api
""")
    return "".join(lines)


def emit_names(table):
    lines = [NOTICE, '#include "api/opcodes.h"\n\n'
             "namespace rcuda::api {\n\nconst char* opcode_name(uint16_t opcode) {\n"
             "  switch (opcode) {\n"]
    lines += [f'    case 0x{c.opcode:03x}: return "{c.name}";\n'
              for c in [*table.commands.values(), *by_opcode(table)]]
    lines.append('    default: return "unknown";\n  }\n}\n\n}  // namespace rcuda::api\n')
    return "".join(lines)


def layouts_of(types, layouts):
    """The definitions of these C types and of the types of their members."""
    found, open_names = {}, re.findall(r"\w+", " ".join(types))
    while open_names:
        name = open_names.pop()
        if name in layouts and name not in found:
            found[name] = layouts[name]
            open_names += re.findall(r"\w+", layouts[name])
    return sorted(found.items())


def description_of_function(function, table, layouts):
    """Everything that must be equal in client and worker. The traits need not be: each side uses its own table."""
    arguments = [(a.form, a.element, a.kind, a.nullable, a.count, a.count_from) for a in function.arguments]
    elements = [a.element for a in function.arguments]
    for name in elements:  # the loop appends to `elements`
        elements += [f.type for f in table.types.structs[name].fixups if f.type not in elements] \
            if name in table.types.structs else []
    fixups = [(name, [(f.path, f.form, f.type, f.count, f.when, f.direction) for f in table.types.structs[name].fixups])
              for name in elements if name in table.types.structs]
    return (function.name, function.klass, function.prototype.types, arguments, function.always_outputs, fixups,
            layouts_of([*function.prototype.types, *elements], layouts))


def description_of_command(command, layouts):
    """Like description_of_function(), for a custom command. The protocol's hash covers rcuda's own structs (struct_layouts.py)."""
    parts = (command.body, command.tail, command.reply, command.reply_tail)
    return (command.name, command.klass, [[(m.type, m.name, m.length) for m in part] for part in parts],
            layouts_of([m.type for part in parts for m in part], layouts))


def hash_of(description):
    """A hash of 32 bits, never 0."""
    return int(hashlib.sha256(repr(description).encode()).hexdigest()[:8], 16) or 1


def command_hashes(table, layouts):
    """opcode -> hash."""
    hashes = {c.opcode: hash_of(description_of_command(c, layouts)) for c in table.commands.values()}
    return hashes | {f.opcode: hash_of(description_of_function(f, table, layouts)) for f in by_opcode(table)}


def emit_hashes(table, toolkit):
    hashes = command_hashes(table, toolkit.layouts)
    lines = [NOTICE, '#include "api/command_hashes.h"\n\nnamespace rcuda::api {\n\n'
             "namespace internal {\nconst uint32_t kHashes[] = {\n"]
    lines += [f"    0x{hashes.get(opcode, 0):08x},\n" for opcode in range(max(hashes) + 1)]
    lines.append(f"}};\nconst size_t kHashCount = {max(hashes) + 1};\n}}  // namespace internal\n\n"
                 "}  // namespace rcuda::api\n")
    return "".join(lines)
