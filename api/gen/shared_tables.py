"""Generates the parts shared by both sides and the tools: opcodes, their names, the hash of the interface."""

import hashlib

from emit import NOTICE

# Files that define the messages between client and worker, and between workers. api/CMakeLists.txt has
# the same list.
PROTOCOL_FILES = (
    "common/wire/address_ranges.h", "common/wire/codec.cpp", "common/wire/codec.h",
    "common/wire/exported_name.h", "common/wire/frame.h", "common/wire/handshake.cpp", "common/wire/handshake.h",
    "common/wire/protocol.h", "common/wire/ring.cpp", "common/wire/ring.h", "common/wire/socket_keys.cpp",
    "p2p/pipeline/messages.h")


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


def emit_hash(table, repository):
    digest = hashlib.sha256(table.digest.encode())
    for name in PROTOCOL_FILES:
        digest.update((repository / name).read_bytes())
    value = digest.hexdigest()[:16]
    return ("// kApiHash: the same on two sides that understand one another. It covers the table, its\n"
            "// prototypes and the messages' declarations, and travels in the handshake.\n" + NOTICE +
            "#pragma once\n\n#include <cstdint>\n\nnamespace rcuda::api {\n\n"
            f"inline constexpr uint64_t kApiHash = 0x{value}ull;\n\n"
            "}  // namespace rcuda::api\n")
