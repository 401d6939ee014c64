"""The traits of commands (api/table/README.md, "Traits"): the columns, their checks, and the constexpr
table that client and worker read (api/traits.h)."""

import dataclasses
import re

from emit import NOTICE
from errors import TableError

FIRST_OPCODE = 0x100  # of functions; opcodes of custom commands are below it
ENUMERATIONS = {
    "while_held": {"waits": "kWaits", "asks": "kAsks", "queues": "kQueues", "passes": "kPasses"},
    "queues": {"work": "kWork", "if_it_holds": "kIfItHolds", "answered": "kAnswered",
               "nothing": "kNothing"},
    "frees": {"": "kNothing", "at_once": "kAtOnce", "in_stream": "kInStream", "context": "kContext"},
}
HOLDS = re.compile(r"(\w+) & (k\w+)")


@dataclasses.dataclass(frozen=True)
class Traits:
    while_held: str = "waits"
    queues: str = "work"
    frees: str = ""
    waits_for_device: bool = False
    any_context: bool = False
    overtaken: bool = False
    device_work: str = "none"  # or the body's member that names the stream
    holds_stream: str | bool = False  # True, or "member & kFlag"

    COLUMNS = ("while_held", "queues", "frees", "waits_for_device", "any_context", "overtaken", "device_work",
               "holds_stream")
    OF_BODIES = ("device_work", "holds_stream")

    @staticmethod
    def of(name, entry, body):
        """The traits of an entry. `body`: a custom command's members and their types, else None."""
        given = {key: entry[key] for key in Traits.COLUMNS if key in entry}
        for key, value in given.items():
            words = ENUMERATIONS.get(key)
            if words and value not in words:
                raise TableError(f"{name}: {key} must be one of {', '.join(filter(None, words))}")
            if key in Traits.OF_BODIES and body is None:
                raise TableError(f"{name}: {key} is for custom commands, because their body has a fixed form")
        traits = Traits(**given)
        for column in ("waits_for_device", "any_context", "overtaken"):
            if not isinstance(getattr(traits, column), bool):
                raise TableError(f"{name}: {column} must be true or false")
        if traits.frees == "at_once" and not traits.waits_for_device:
            raise TableError(f"{name}: frees: a command that frees at once waits until the device is idle and "
                             "other workers have released the memory, so waits_for_device must be true")
        if body is None:
            if traits.queues != "work":
                raise TableError(f"{name}: queues is for custom commands")
            if traits.while_held == "asks":
                raise TableError(f"{name}: while_held: asks is for custom commands")
        else:
            traits.check_body(name, body)
        return traits

    def check_body(self, name, body):
        def need(column, member):
            if body.get(member) != "uint32_t":
                raise TableError(f"{name}: {column}: the body has no uint32_t {member}")

        if self.frees:
            raise TableError(f"{name}: frees is for functions of the driver")
        if self.device_work != "none":
            need("device_work", self.device_work)
        if self.holds_stream:
            need("holds_stream", "link")
            if self.holds_stream is not True:
                match = HOLDS.fullmatch(str(self.holds_stream))
                if not match:
                    raise TableError(f"{name}: holds_stream must be true or \"member & kFlag\"")
                need("holds_stream", match[1])
        elif self.queues == "if_it_holds":
            raise TableError(f"{name}: queues: if_it_holds needs holds_stream")


def initialiser(traits, struct="", signals=False):
    """A CommandTraits, by designated initialisers."""
    def offset(member):
        return f"offsetof(wire::{struct}, {member})"

    parts = []
    for column, type_name in (("while_held", "WhileHeld"), ("queues", "Queues"), ("frees", "Frees")):
        value = getattr(traits, column)
        if value != getattr(Traits(), column):
            parts.append(f".{column} = {type_name}::{ENUMERATIONS[column][value]}")
    if traits.waits_for_device:
        parts.append(".waits_for_device = true")
    if traits.any_context:
        parts.append(".any_context = true")
    if traits.overtaken:
        parts.append(".overtaken = true")
    if traits.holds_stream:
        parts.append(".holds_stream = true")
    if struct:
        parts.append(f".body_bytes = sizeof(wire::{struct})")
    if signals:
        parts += [f".word = {offset('word')}", f".sequence = {offset('sequence')}"]
    if traits.device_work != "none":
        parts.append(f".device_work = {offset(traits.device_work)}")
    if traits.holds_stream:
        parts.append(f".link = {offset('link')}")
        if traits.holds_stream is not True:
            member, flag = HOLDS.fullmatch(traits.holds_stream).groups()
            parts += [f".flags = {offset(member)}", f".hold_flag = wire::{flag}"]
    return "{" + ", ".join(parts) + "}"


def rows(first, by_opcode):
    lines = []
    for opcode in range(first, max(by_opcode, default=first - 1) + 1):
        name, text = by_opcode.get(opcode, ("", "{}"))
        lines.append(f"    {text},  // {name or 'none'}\n")
    return "".join(lines)


def emit(table):
    custom = {c.opcode: (c.name, initialiser(c.traits, c.struct, c.signals))
              for c in table.commands.values()}
    generated = {f.opcode: (f.name, initialiser(f.traits)) for f in table.functions.values() if f.travels}
    return f"""// The traits of each command: the columns of api/table.
{NOTICE}#pragma once

#include <cstddef>

#include "api/command_traits.h"
#include "common/wire/commands.h"

namespace rcuda::api {{

// By opcode, from 0.
inline constexpr CommandTraits kCustomTraits[] = {{
{rows(0, custom)}}};
// From kFirstGenerated.
inline constexpr CommandTraits kGeneratedTraits[] = {{
{rows(FIRST_OPCODE, generated)}}};
inline constexpr CommandTraits kUnknownTraits{{}};

// An unknown opcode has the traits of a command that may do anything.
constexpr const CommandTraits& traits_of(uint16_t opcode) {{
  if (opcode < std::size(kCustomTraits)) return kCustomTraits[opcode];
  constexpr auto kFirst = static_cast<uint16_t>(wire::Custom::kFirstGenerated);
  const auto index = static_cast<size_t>(opcode - kFirst);
  return opcode >= kFirst && index < std::size(kGeneratedTraits) ? kGeneratedTraits[index] : kUnknownTraits;
}}
constexpr const CommandTraits& traits_of(wire::Custom opcode) {{
  return traits_of(static_cast<uint16_t>(opcode));
}}

}}  // namespace rcuda::api
"""
