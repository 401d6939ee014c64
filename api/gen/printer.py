"""Generates the layout of every command for the printer (api/printer.cpp)."""

from emit import NOTICE


def items(function, types):
    """(form, name, size) of everything in the body, in order."""
    result = []
    for a in function.arguments:
        struct = types.structs.get(a.element)
        if a.form == "value":
            is_pointer = a.type.endswith("*")
            kind = "kAddress" if is_pointer or a.type == "CUdeviceptr" else f"form_of<{a.type}>"
            size = "8" if is_pointer else f"sizeof({a.type}), alignof({a.type})"
            result.append((kind, a.name, size))
        elif a.form == "struct":
            result.append(("kBlob", a.name, f"sizeof({a.type}), alignof({a.type})"))
        elif a.form == "device":
            result.append(("kNumber", a.name, "4"))
        elif a.form in ("handle", "destroy"):
            result.append(("kObject", a.name, "4"))
        elif a.form == "function":
            result.append(("kFunction", a.name, "8"))
        elif a.form == "string":
            result.append(("kString", a.name, "0"))
        elif a.form in ("in", "inout") and not a.count:
            arrays = struct.arrays if struct else []
            if a.nullable:
                result.append(("kPresent", str(1 + len(arrays)), "4"))
            kind = "kNumber" if a.element in ("size_t", "int", "unsigned int") else "kBlob"
            result.append((kind, a.name, f"sizeof({a.element}), alignof({a.element})"))
            result += [("kArray", f.path, f"sizeof({f.type})") for f in arrays]
        elif a.form == "in":
            if a.nullable:
                result.append(("kFlag", "", "4"))
            size = "4" if a.kind else f"sizeof({a.element})"
            result.append(("kObjects" if a.kind else "kArray", a.name, size))
        elif a.form in ("out", "named") and not a.count and a.nullable:
            result.append(("kFlag", "", "4"))
        elif a.form in ("out", "named") and a.count:
            result.append(("kRoom", a.name, "4"))
            if a.count_from:
                result.append(("kFlag", "", "4"))
    result += [("kCreated", a.name, "4") for a in function.arguments if a.form == "create"]
    return result


def spell(form):
    return form if form.startswith("form_of") else f"Form::{form}"


def emit(table):
    lines = [NOTICE, '#include <cuda.h>\n\n#include "api/layout.h"\n\n'
             "namespace rcuda::api {\nnamespace {\n\n"]
    functions = sorted((f for f in table.functions.values() if f.travels), key=lambda f: f.opcode)
    for f in functions:
        found = items(f, table.types)
        body = "".join(f'    {{{spell(form)}, "{name}", {size}}},\n' for form, name, size in found)
        lines.append(f"const Item k_{f.name}[] = {{\n{body}    {{Form::kEnd, nullptr, 0}}}};\n")
    lines.append("\n}  // namespace\n\nconst Item* layout_of(uint16_t opcode) {\n  switch (opcode) {\n")
    lines += [f"    case 0x{f.opcode:03x}: return k_{f.name};\n" for f in functions]
    lines.append("    default: return nullptr;\n  }\n}\n\n}  // namespace rcuda::api\n")
    return "".join(lines)
