"""Custom commands (api/table/commands.toml): reading, checking, and the header with their opcodes and
bodies."""

import dataclasses
import re

from emit import NOTICE
from errors import TableError
from traits import Traits

FAMILY = "commands"
CLASSES = ("post", "call")
PROPERTIES = {"class", "family", "server", "does", "body", "tail", "reply", "reply_tail"}
# "loop": SessionEnd has no handler; it ends the session loop.
SERVERS = ("", "loop")
# server/executor/core/services.h declares the services of each family.
FAMILIES = ("blob", "copy", "launch", "memory", "module", "nccl", "peer", "stream")
NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
MEMBER = re.compile(r"([\w:]+) (\w+)(?:\[(\w*)\])?\s*(?://\s*(.*))?")


@dataclasses.dataclass(frozen=True)
class Member:
    type: str
    name: str
    length: str | None = None  # of an array; "": all remaining items
    comments: tuple = ()  # the comment lines above the member
    comment: str = ""

    @property
    def declaration(self):
        return f"{self.type} {self.name}" + ("" if self.length is None else f"[{self.length}]")

    @property
    def bytes(self):
        return f"sizeof({self.type})" + (f" * {self.length}" if self.length else "")


@dataclasses.dataclass
class Command:
    name: str
    klass: str
    family: str  # its handler gets the services of this family
    handled: bool  # the worker has a handler for it
    does: str  # an expression in place of a handwritten handler
    body: tuple  # of Member
    body_of: str  # the command that declares the body; "": no body
    tail: tuple  # of Member: the members after the body
    reply: tuple
    reply_of: str
    reply_tail: tuple
    traits: Traits
    opcode: int = -1

    @property
    def struct(self):
        return f"{self.body_of}Body" if self.body_of else ""

    @property
    def handler(self):
        return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", self.name).lower()

    @property
    def replies(self):
        """Whether the handler gets a reply to fill."""
        return bool(self.reply or self.reply_tail)

    @property
    def signals(self):
        return any(m.name == "word" for m in self.body)


def members_of(where, text):
    """One member per line; a comment line belongs to the member below it."""
    members, comments = [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("//"):
            comments.append(line)
            continue
        match = MEMBER.fullmatch(line)
        if not match:
            raise TableError(f"{where}: cannot read {line!r}: write one member per line, \"type name\" or "
                             "\"type name[length]\", then perhaps \"// comment\"")
        if any(m.name == match[2] for m in members):
            raise TableError(f"{where}: {match[2]} appears twice")
        members.append(Member(match[1], match[2], match[3], tuple(comments), match[4] or ""))
        comments = []
    return tuple(members)


def resolve(raw, name, key):
    """The members of `key`, and the command that declares them."""
    text = raw[name].get(key, "")
    if not NAME.fullmatch(text):
        members = members_of(f"{name}: {key}", text)
        if any(m.length == "" for m in members):
            raise TableError(f"{name}: {key}: an array needs a length")
        return members, name if text else ""
    if text not in raw or NAME.fullmatch(raw[text].get(key, "")) or key not in raw[text]:
        raise TableError(f"{name}: {key}: the command {text} does not exist, or declares no {key} of its own")
    return members_of(f"{text}: {key}", raw[text][key]), text


def resolve_tail(raw, name, key, declared_by, counts):
    """The members of `key`: those that the command itself declares, or else those of `declared_by`, the command that
    declares its body or reply. `counts`: the members that may be the length of an array."""
    owner = name if key in raw[name] or not declared_by else declared_by
    members = members_of(f"{owner}: {key}", raw[owner].get(key, ""))
    for m in members:
        if m.length and m.length not in counts:
            raise TableError(f"{owner}: {key}: {m.name} has the length {m.length}, which is not a member before it")
    return members


def command_of(raw, name):
    entry = raw[name]
    if not NAME.fullmatch(name):
        raise TableError(f"{name}: a custom command's name is written LikeThis")
    klass = entry.get("class")
    if klass not in CLASSES:
        raise TableError(f"{name}: class must be one of {', '.join(CLASSES)}")
    if entry.get("server", "") not in SERVERS:
        raise TableError(f"{name}: server must be \"loop\" or left out")
    family = entry.get("family", "")
    if "server" not in entry and family not in FAMILIES:
        raise TableError(f"{name}: family must be one of {', '.join(FAMILIES)}")
    for key in entry:
        if key not in PROPERTIES and key not in Traits.COLUMNS:
            raise TableError(f"{name}: {key} is not a property of a custom command")
    body, body_of = resolve(raw, name, "body")
    reply, reply_of = resolve(raw, name, "reply")
    if (reply or "reply_tail" in entry) and klass == "post":
        raise TableError(f"{name}: a command of class post has no reply: remove reply and reply_tail")
    types = {m.name: m.type + (f"[{m.length}]" if m.length else "") for m in body}
    tail = resolve_tail(raw, name, "tail", body_of, types)
    reply_tail = resolve_tail(raw, name, "reply_tail", reply_of, {*types, *(m.name for m in reply)})
    if "word" in types or "sequence" in types:
        if (types.get("word"), types.get("sequence")) != ("uint32_t", "uint64_t"):
            raise TableError(f"{name}: body: a completion word is two members, uint32_t word and "
                             "uint64_t sequence")
    needed = ["while_held", "queues"] + (["device_work"] if "stream" in types else [])
    for key in needed:
        if key not in entry:
            why = ", because its body names a stream" if key == "device_work" else ""
            raise TableError(f"{name}: {key} is missing: a custom command must have it{why} (README.md)")
    traits = Traits.of(name, entry, types)
    if traits.while_held == "asks" and "server" in entry:
        raise TableError(f"{name}: while_held: asks needs a handler, and a command of the loop has none")
    return Command(name, klass, family, entry.get("server", "") != "loop", entry.get("does", ""), body, body_of,
                   tail, reply, reply_of, reply_tail, traits)


def load(raw):
    return {name: command_of(raw, name) for name in raw}


def opcode_of(command):
    return f"  static constexpr Custom kOpcode = Custom::k{command};\n"


def struct_of(name, members, header, tail, command=""):
    """`command`: for a body, the command that it belongs to."""
    lines = [f"struct {name} {{\n", opcode_of(command) if command else ""]
    if header:
        lines.append("  ReplyHeader header;\n")
    for m in members:
        lines += [f"  {comment}\n" for comment in m.comments]
        lines.append(f"  {m.declaration};" + (f"  // {m.comment}" if m.comment else "") + "\n")
    if tail:
        lines.append("  // Then:\n")
    for m in tail:
        lines += [f"  //   {comment.lstrip('/ ')}\n" for comment in m.comments]
        lines.append(f"  //   {m.declaration};" + (f"  // {m.comment}" if m.comment else "") + "\n")
    lines.append("};\n")
    sizes = (["sizeof(ReplyHeader)"] if header else []) + [m.bytes for m in members]
    lines.append(f"static_assert(sizeof({name}) == {' + '.join(sizes)},\n"
                 f"              \"api/table/commands.toml: {name} has holes: order its members by "
                 "size or fill them with reserved ones\");\n\n")
    return "".join(lines)


def emit_header(table):
    commands = sorted(table.commands.values(), key=lambda c: c.opcode)
    lines = ["// Custom commands: opcodes, bodies and replies. api/table/commands.toml describes each of them.\n",
             NOTICE, '#pragma once\n\n#include <cstdint>\n\n#include "common/wire/frame.h"\n\n'
             "namespace rcuda::wire {\n\nenum class Custom : uint16_t {\n  kInvalid = 0,\n"]
    lines += [f"  k{c.name} = 0x{c.opcode:03x},\n" for c in commands]
    lines.append("  kFirstGenerated = 0x100,  // opcodes of driver functions: api/opcodes.h\n};\n\n")
    for c in commands:
        if c.body_of == c.name:
            lines.append(struct_of(f"{c.name}Body", c.body, False, c.tail, c.name))
        if not c.body_of:
            lines.append(f"struct {c.name}Body {{\n{opcode_of(c.name)}}};\n\n")
        if c.reply_of == c.name:
            lines.append(struct_of(f"{c.name}Reply", c.reply, True, c.reply_tail))
    for c in commands:
        if c.body_of not in ("", c.name):
            lines.append(f"struct {c.name}Body : {c.body_of}Body {{\n{opcode_of(c.name)}}};\n")
    lines.append("\n}  // namespace rcuda::wire\n")
    return "".join(lines)
