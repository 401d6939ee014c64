"""Generates the parts shared by both sides and the tools: opcodes, their names, the hash of the interface."""

import hashlib
import re

from emit import NOTICE

# Files that define the messages between client and worker, and between workers. api/CMakeLists.txt has
# the same list.
PROTOCOL_FILES = (
    "common/wire/address_ranges.h", "common/wire/block_digest.h", "common/wire/codec.cpp", "common/wire/codec.h",
    "common/wire/exported_name.h", "common/wire/frame.h", "common/wire/handshake.cpp", "common/wire/handshake.h",
    "common/wire/marked_bytes.h", "common/wire/protocol.h", "common/wire/ring.cpp", "common/wire/ring.h", "common/wire/socket_keys.cpp",
    "common/transport/control_message.h", "common/transport/doorbell.h", "common/transport/shm/shm_messages.h",
    "common/transport/tcp/tcp_messages.h", "common/transport/verbs/hello.h", "p2p/pipeline/messages.h")


# Messages by which tools ask a server, and the files that define each (common/wire/forms.h). All of them are watched
# as those above are.
CODECS = ("common/wire/message_codec.h", "common/wire/work_codec.h")
FORMS = {
    "Status": ("common/wire/handshake.cpp", "common/wire/handshake.h"),
    "GpuReport": ("common/wire/gpu_report.cpp", "common/wire/gpu_report.h"),
    "Lease": ("common/wire/lease_messages.cpp", "common/wire/lease_messages.h"),
    "Control": ("common/wire/control_messages.cpp", "common/wire/control_messages.h"),
}
FORM_FILES = (*CODECS, *(name for files in FORMS.values() for name in files))


def by_opcode(table):
    return sorted((f for f in table.functions.values() if f.travels), key=lambda f: f.opcode)


def emit_opcodes(table):
    lines = ["// Opcodes of the generated commands; those of common/wire/commands.h are below them.\n",
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
    """The definitions of these C types, and of what they consist of."""
    found, open_names = {}, re.findall(r"\w+", " ".join(types))
    while open_names:
        name = open_names.pop()
        if name in layouts and name not in found:
            found[name] = layouts[name]
            open_names += re.findall(r"\w+", layouts[name])
    return sorted(found.items())


def description_of_function(function, table, layouts):
    """All that client and worker must agree on to use it. Its traits are not: each side asks its own table."""
    arguments = [(a.form, a.element, a.kind, a.nullable, a.count, a.count_from) for a in function.arguments]
    elements = [a.element for a in function.arguments]
    for name in elements:  # grows
        elements += [f.type for f in table.types.structs[name].fixups if f.type not in elements] \
            if name in table.types.structs else []
    fixups = [(name, [(f.path, f.form, f.type, f.count, f.when, f.direction) for f in table.types.structs[name].fixups])
              for name in elements if name in table.types.structs]
    return (function.name, function.klass, function.prototype.types, arguments, function.always_outputs, fixups,
            layouts_of([*function.prototype.types, *elements], layouts))


def description_of_command(command):
    def members(of):
        return [(m.type, m.name, m.length) for m in of]
    return (command.name, command.klass, members(command.body), command.tail, members(command.reply),
            command.reply_tail)


def hash_of(description):
    """Of 32 bits, never 0."""
    return int(hashlib.sha256(repr(description).encode()).hexdigest()[:8], 16) or 1


def hash_of_files(repository, names):
    """Over the declarations in them, whatever their comments and spaces are."""
    digest = hashlib.sha256()
    for name in names:
        text = re.sub(r"//.*", "", (repository / name).read_text(encoding="utf-8"))
        digest.update("".join(text.split()).encode())
    return digest.hexdigest()[:16]


def protocol_hash(repository):
    return hash_of_files(repository, PROTOCOL_FILES)


def form_hashes(repository):
    return {form: hash_of_files(repository, (*files, *CODECS)) for form, files in FORMS.items()}


def emit_forms(repository):
    lines = ["// What common/wire/forms.h compares.\n", NOTICE, "#pragma once\n\n#include <cstdint>\n\n"
             "namespace rcuda::wire {\n\n"]
    lines += [f"inline constexpr uint64_t k{form}Form = 0x{value}ull;\n"
              for form, value in form_hashes(repository).items()]
    lines.append("\n}  // namespace rcuda::wire\n")
    return "".join(lines)


def command_hashes(table, layouts):
    """opcode -> hash."""
    hashes = {c.opcode: hash_of(description_of_command(c)) for c in table.commands.values()}
    return hashes | {f.opcode: hash_of(description_of_function(f, table, layouts)) for f in by_opcode(table)}


def emit_hashes(table, toolkit, repository):
    hashes = command_hashes(table, toolkit.layouts)
    lines = [NOTICE, '#include "api/command_hashes.h"\n\nnamespace rcuda::api {\n\n'
             f"const uint64_t kProtocolHash = 0x{protocol_hash(repository)}ull;\n\n"
             "namespace internal {\nconst uint32_t kHashes[] = {\n"]
    lines += [f"    0x{hashes.get(opcode, 0):08x},\n" for opcode in range(max(hashes) + 1)]
    lines.append(f"}};\nconst size_t kHashCount = {max(hashes) + 1};\n}}  // namespace internal\n\n"
                 "}  // namespace rcuda::api\n")
    return "".join(lines)
