"""Generates the worker's table of custom commands. Each entry decodes a command's body, makes the checks
that all commands need, and calls the handler, which is handwritten in server/executor."""

from emit import NOTICE
from server import serve_declaration, served_families
from traits import FIRST_OPCODE


def handler_parameters(c):
    body = f", const wire::{c.struct}& body" if c.struct else ""
    reply = ", std::vector<std::byte>* reply" if c.replies else ""
    return f"({services(c)}Services& services, const Command& command{body}{reply})"


def services(c):
    return c.family.capitalize()


def emit_header(table):
    lines = ["""// The handlers of custom commands, one each, in server/executor/handlers.
//
// A handler gets the body, and in `command` the bytes after the body. Only the body's completion
// word has been checked; all else comes from the peer unchecked. The client waits for the reply to a
// command of class "call": the handler appends the members of the reply, without its header.
// X_may_wait(): see CommandScheduler.
""", NOTICE, '#pragma once\n\n#include <vector>\n\n#include "server/executor/core/custom.h"\n\nnamespace rcuda::server {\n\n']
    for c in table.commands.values():
        if c.handled and not c.does:
            lines.append(f"HandlerResult {c.handler}{handler_parameters(c)};\n")
        if c.traits.while_held == "asks":
            lines.append(f"bool {c.handler}_may_wait({services(c)}Services& services, const Command& command"
                         + (f", const wire::{c.struct}& body" if c.struct else "") + ");\n")
    lines.append("\n}  // namespace rcuda::server\n")
    return "".join(lines)


def call_of(c, command, body):
    if c.does:
        return f"  [[maybe_unused]] auto& services = executor.{c.family}_services;\n  return {c.does};\n}}\n\n"
    reply = ", reply" if c.replies else ""
    return f"  return {c.handler}(executor.{c.family}_services, {command}{body}{reply});\n}}\n\n"


def emit_run(c):
    lines = [f"HandlerResult run_{c.name}(Executor& executor, [[maybe_unused]] const Command& command, "
             "[[maybe_unused]] std::vector<std::byte>* reply) {\n"]
    if c.klass == "call":
        lines.append("  if (command.target.call == 0) return kMalformed;\n")
    if not c.struct:
        return "".join(lines) + call_of(c, "command", "")
    test = "!in.read(&body)" + (" || !word_exists(body.word)" if c.signals else "")
    lines.append(f"  BodyReader in(command.tail);\n  wire::{c.struct} body;\n"
                 f"  if ({test}) return kMalformed;\n")
    return "".join(lines) + call_of(c, "{command.header, in.rest(), command.target}", ", body")


def emit_question(c):
    if not c.struct:
        return (f"bool ask_{c.name}(Executor& executor, const Command& command) {{\n"
                f"  return {c.handler}_may_wait(executor.{c.family}_services, command);\n}}\n\n")
    return (f"bool ask_{c.name}(Executor& executor, const Command& command) {{\n"
            f"  BodyReader in(command.tail);\n  wire::{c.struct} body;\n"
            f"  return in.read(&body) && {c.handler}_may_wait(executor.{c.family}_services, "
            "{command.header, in.rest(), command.target}, body);\n}\n\n")


def emit_serve(f):
    lines = [f"{serve_declaration(f)} {{\n"]
    if f.first:
        lines.append(f"  if (services.driver.{f.name} == nullptr) return CUDA_ERROR_NOT_SUPPORTED;\n  {f.first};\n")
    arguments = ", ".join(p.name for p in f.prototype.parameters)
    return "".join(lines) + f"  return {f.does or f'services.driver.{f.name}({arguments})'};\n}}\n\n"


def emit_dispatch(table):
    by_opcode = {c.opcode: c for c in table.commands.values()}
    lines = [NOTICE, '#include "api/server_commands.h"\n\n#include <iterator>\n\n#include "api/server_handlers.h"\n'
             '#include "server/executor/core/executor.h"\n\nnamespace rcuda::server {\n\n']
    lines += [f"{f.capitalize()}Services& {f}_services(Executor& executor) {{ return executor.{f}_services; }}\n"
              for f in served_families(table)] + ["\n"]
    lines += [emit_serve(f) for f in table.functions.values() if f.first or f.does]
    lines.append("namespace {\n\n")
    for c in table.commands.values():
        if c.handled:
            lines.append(emit_run(c))
        if c.traits.while_held == "asks":
            lines.append(emit_question(c))
    lines.append("const CustomEntry kEntries[] = {\n")
    for opcode in range(0, max(by_opcode, default=0) + 1):
        c = by_opcode.get(opcode)
        if c is None or not c.handled:
            lines.append(f"    {{}},  // {c.name if c else 'none'}\n")
            continue
        ask = "nullptr"
        if c.traits.while_held == "asks":
            ask = f"&ask_{c.name}"
        lines.append(f"    {{&run_{c.name}, {ask}}},\n")
    lines.append(f"""}};
static_assert(std::size(kEntries) <= 0x{FIRST_OPCODE:x});

}}  // namespace

const CustomEntry* custom_command(uint16_t opcode) {{
  if (opcode >= std::size(kEntries) || !kEntries[opcode].run) return nullptr;
  return &kEntries[opcode];
}}

}}  // namespace rcuda::server
""")
    return "".join(lines)
