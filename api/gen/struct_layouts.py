"""The layout of the messages that are plain structs, from the declarations in C++ headers: constants, enumerations,
type aliases and members of structs. Comments, string literals, functions, classes and default values are not part of
the layout."""

import hashlib
import re

from emit import NOTICE

# The headers that declare such messages, and the rings, windows and ranges of addresses that both sides use.
# api/CMakeLists.txt has the same list.
HEADERS = (
    "common/transport/control_message.h", "common/transport/doorbell.h", "common/transport/greeting.h",
    "common/transport/shm/shm_messages.h", "common/transport/tcp/tcp_messages.h", "common/transport/verbs/hello.h",
    "common/wire/address_ranges.h", "common/wire/block_digest.h", "common/wire/codec.h", "common/wire/exported_name.h", "common/wire/frame.h",
    "common/messages/message_io.h", "common/wire/protocol.h", "common/wire/ring.h", "common/reach/socket_keys.h",
    "p2p/link/messages.h")

FUNCTION = re.compile(r"\boperator\b|^(?!.*\bconstexpr\b[^(]*=)(?!alignas)[^=]*\(", re.S)


def closing(text, opening):
    """The position of the bracket that closes the bracket at `opening`."""
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"no bracket closes {text[opening:opening + 40]!r}")


def statements(text):
    """(the text before the first brace, the text inside the braces or None) for each declaration."""
    start = place = 0
    head = body = None
    while place < len(text):
        if text[place] == ";":
            yield (text[start:place].strip(), None) if head is None else (head, body)
            start, head = place + 1, None
        elif text[place] == "{":
            end = closing(text, place)
            if head is None:
                head, body = text[start:place].strip(), text[place + 1:end]
            place = end
            if FUNCTION.search(head) or head.startswith("namespace"):  # no semicolon follows
                yield head, body
                start, head = end + 1, None
        place += 1


def words(text):
    """The text with normalised white space."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text))


def declarations(text):
    """The declarations of a part of a header, one per line."""
    for head, body in statements(text):
        head = re.sub(r"^(?:public|private|protected):\s*", "", head)
        if head.startswith("namespace"):
            yield from declarations(body)
        elif head.startswith("static_assert"):
            yield words(head)
        elif head.startswith("struct") and body is not None:
            yield f"{words(head)} {{ {' ; '.join(declarations(body))} }}"
        elif head.startswith("enum") and body is not None:
            yield f"{words(head)} {{ {words(body).removesuffix(' ,')} }}"
        elif head.startswith(("template", "class", "struct", "enum", "friend")) or FUNCTION.search(head):
            continue
        elif "constexpr" in head or head.startswith("using"):
            yield words(head + (f" {{ {body} }}" if body is not None else ""))
        elif head:
            yield words(re.sub(r"=[^,]*", "", head))  # a member without its default value


def layout(text):
    """The layout of a header."""
    text = re.sub(r"//.*|^#.*", "", text, flags=re.M)
    return "\n".join(declarations(re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)))


def layouts_hash(repository):
    layouts = "\n".join(layout((repository / name).read_text(encoding="utf-8")) for name in HEADERS)
    return hashlib.sha256(layouts.encode()).hexdigest()[:16]


def emit(repository):
    return ("// For common/reach/protocol_hash.cpp: a hash of the headers that declare plain structs.\n" + NOTICE +
            "#pragma once\n\n#include <cstdint>\n\nnamespace rcuda::wire {\n\n"
            f"inline constexpr uint64_t kStructLayouts = 0x{layouts_hash(repository)};\n\n"
            "}  // namespace rcuda::wire\n")
