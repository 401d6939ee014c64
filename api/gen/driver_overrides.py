"""Generates the overrides of a session's driver from api/table/driver_overrides.toml (notation:
api/table/README.md).

Each list has a context, whose member `driver` is the table of functions that the overrides call. A handwritten
override is a function of the context and the entry's arguments, named PREFIX_cuX. The generated header declares it.
"""

import dataclasses
import tomllib

from emit import NOTICE
from errors import TableError


@dataclasses.dataclass(frozen=True)
class Layer:
    context: str  # its type
    name: str  # its name in expressions, and the prefix of handwritten overrides
    add: str  # the function that adds the overrides of the list


LAYERS = {
    "guard": Layer("WindowGuard", "guard", "guard_addresses"),
    "movable": Layer("MovableMemory", "movable", "move_memory"),
    "memory": Layer("Meters", "meters", "meter_memory"),
    "variables": Layer("Meters", "meters", "meter_variables"),
    "priorities": Layer("Meters", "meters", "limit_priorities"),
}
SOURCES = {
    "guard": ("server/driver/window_guard.h", ["guard"]),
    "movable": ("server/executor/movable/movable_memory.h", ["movable"]),
    "meter": ("server/executor/metering/meters.h", ["memory", "variables", "priorities"]),
}
PROPERTIES = {"address", "again", "books", "bytes", "check", "done", "ends", "first", "instead", "then", "undo",
              "what"}


def load(path, toolkit):
    """Name of a list -> {name of a function: its properties; None if the override is handwritten}."""
    with open(path, "rb") as file:
        raw = tomllib.load(file)
    lists = {}
    for name, rows in raw.items():
        if name not in LAYERS:
            raise TableError(f"{path.name}: {name} is not a list of overrides; the lists are {', '.join(LAYERS)}")
        entries = dict.fromkeys(rows.pop("handwritten", []))
        for function, row in rows.items():
            if unknown := set(row) - PROPERTIES:
                raise TableError(f"{path.name}: {function}: unknown properties: {', '.join(sorted(unknown))}")
            if function in entries:
                raise TableError(f"{path.name}: {function} has a row and is in handwritten: remove one of the two")
            if "undo" in row and not {"address", "check"} & set(row):
                raise TableError(f"{path.name}: {function}: undo needs address or check")
            entries[function] = row
        if missing := set(entries) - set(toolkit.prototypes):
            raise TableError(f"{path.name}: {name}: cuda.h has no {', '.join(sorted(missing))}")
        lists[name] = entries
    return lists


def signature(layer, prefix, prototype):
    return f"CUresult {prefix}_{prototype.name}({layer.context}& {layer.name}, {prototype.parameter_list})"


def emit_header(lists, toolkit):
    lines = ["""// The overrides of a session's driver (api/driver_decorator.h).
""", NOTICE, """#pragma once

#include <cuda.h>

namespace rcuda::server {

template <typename Context>
class DriverDecorator;
struct Meters;
class MovableMemory;
class WindowGuard;

"""]
    for name, layer in LAYERS.items():
        lines.append(f"void {layer.add}(DriverDecorator<{layer.context}>& driver);\n")
        lines += [signature(layer, layer.name, toolkit.prototypes[f]) + ";\n"
                  for f, row in lists.get(name, {}).items() if row is None]
    lines.append("\n}  // namespace rcuda::server\n")
    return "".join(lines)


def body(layer, prototype, row):
    call = f"{layer.name}.driver.{prototype.name}({', '.join(p.name for p in prototype.parameters)})"
    first = prototype.parameters[0].name
    if "instead" in row:
        return f"  return {row['instead']};\n"
    if "again" in row:
        return (f"  return guard.allocate_inside({row['address']}, {row['bytes']}, [&] {{\n"
                f"    return {call};\n  }});\n")
    if "books" in row:
        return (f"  return make_booked(meters, meters.{row['books']}, {row['bytes']}, {first}, [&] {{\n"
                f"    return {call};\n  }});\n")
    text = f"  {row['first']};\n" if "first" in row else ""
    if "ends" in row:
        call = f"end_booked(meters.{row['ends']}, {first}, [&] {{\n    return {call};\n  }})"
    text += f"  {'' if 'check' in row else 'const '}CUresult result = {call};\n"
    undo = f"    (void){layer.name}.driver.{row['undo']};\n" if "undo" in row else ""
    if "address" in row:
        text += (f"  if (result == CUDA_SUCCESS && !guard.contains({row['address']}, {row['bytes']})) {{\n"
                 f"{undo}    return guard.refuse(\"{row['what']}\", {row['bytes']});\n  }}\n")
    if "check" in row:
        text += (f"  if (result != CUDA_SUCCESS) return result;\n  result = {row['check']};\n"
                 f"  if (result != CUDA_SUCCESS) {{\n{undo}  }}\n")
    if "done" in row:
        text += f"  if (result == CUDA_SUCCESS) {row['done']};\n"
    if "then" in row:
        text += f"  {row['then']};\n"
    return text + "  return result;\n"


def emit_source(source, lists, toolkit):
    header, names = SOURCES[source]
    lines = [NOTICE, f'#include "api/driver_overrides.h"\n#include "{header}"\n\nnamespace rcuda::server {{\n']
    for name in names:
        layer, rows = LAYERS[name], lists.get(name, {})
        lines.append("namespace {\n\n")
        for function, row in rows.items():
            if row is not None:
                prototype = toolkit.prototypes[function]
                lines.append(f"{signature(layer, 'override', prototype)} {{\n{body(layer, prototype, row)}}}\n\n")
        lines.append(f"}}  // namespace\n\nvoid {layer.add}(DriverDecorator<{layer.context}>& driver) {{\n")
        lines += [f"  driver.override_entry<&{'override' if row else layer.name}_{function}>("
                  f"&api::DriverTable::{function});\n" for function, row in rows.items()]
        lines.append("}\n\n")
    lines.append("}  // namespace rcuda::server\n")
    return "".join(lines)
