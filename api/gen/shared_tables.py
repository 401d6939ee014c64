"""Generates what both sides and the tools share: opcodes, the hash of the interface, names."""

import hashlib
import pathlib

from emit import NOTICE

# Files of common/wire that define the layout of messages.
PROTOCOL_FILES = ("protocol.h", "codec.h", "codec.cpp", "ring.h", "handshake.h")


def emit_opcodes(table):
    lines = [NOTICE, "#pragma once\n\n#include <cstdint>\n\nnamespace rcuda::wire::opcode {\n\n"]
    for f in sorted((f for f in table.functions.values() if f.travels), key=lambda f: f.opcode):
        lines.append(f"inline constexpr uint16_t {f.name} = 0x{f.opcode:03x};\n")
    lines.append("\n}  // namespace rcuda::wire::opcode\n")
    return "".join(lines)


def emit_hash(table, wire_folder):
    digest = hashlib.sha256(table.digest.encode())
    for name in PROTOCOL_FILES:
        path = pathlib.Path(wire_folder) / name
        if path.exists():
            digest.update(path.read_bytes())
    value = digest.hexdigest()[:16]
    return ("// kApiHash: the same on two sides that understand one another. It covers the table, its\n"
            "// prototypes and common/wire, and travels in the handshake.\n" + NOTICE +
            "#pragma once\n\n#include <cstdint>\n\nnamespace rcuda::api {\n\n"
            f"inline constexpr uint64_t kApiHash = 0x{value}ull;\n\n"
            "}  // namespace rcuda::api\n")
