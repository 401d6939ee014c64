"""The annotated table of functions (api/table/*.toml): reads, checks and interprets it.

See api/table/README.md for the notation. A Function carries everything the emitters need; each of
its parameters has a form:

  value          a number or enumeration, sent unchanged
  struct         a struct by value with members that must be translated
  device         a CUdevice: routes the call; the worker gets its own ordinal
  handle         an object's id; `nullable`: null becomes 0
  function       like handle, but the application may pass a CUkernel as a CUfunction
  destroy        a handle that is invalid after the call
  create         out: an object whose id the client assigns
  named          out: an object whose id the worker assigns
  string         in: const char*
  in             one struct or number behind a pointer; with a count: an array
  out, inout     like `in`, but returned; inout is sent and returned
  null           must be null; not sent
  blob           out: bytes of any size, returned by one of rcuda's own calls
"""

import dataclasses
import pathlib
import re
import tomllib

import commands
from cuda_header import PER_THREAD_SUFFIX, Parameter, Prototype, parse_parameter
from errors import TableError
from traits import FIRST_OPCODE, Traits

CLASSES = ("local", "cached", "post", "call", "custom")
LAST_OPCODE = 0xFFF
HANDLE_OUTPUTS = ("create", "named")
INPUTS = ("value", "struct", "device", "handle", "function", "destroy", "string", "in", "inout")
OUTPUTS = ("create", "named", "out", "inout", "blob")
BLOB = "Blob*"


@dataclasses.dataclass(frozen=True)
class Fixup:
    """A member of a struct that cannot be sent unchanged."""
    path: str
    form: str  # handle, location, devices, null, array, callback
    type: str = ""  # handle: the handle's type; array: the element's
    count: str = ""  # array: the member that counts its elements
    when: str = ""  # condition on the struct, over `it`
    direction: str = ""  # in or out: the only direction in which it is sent

    @property
    def member(self):
        return f"it.{self.path}" if self.path else "it"


@dataclasses.dataclass(frozen=True)
class Struct:
    name: str
    fixups: tuple

    @property
    def arrays(self):
        return [f for f in self.fixups if f.form == "array"]

    @property
    def kept(self):
        """Members that the application's struct keeps when an answer is copied into it."""
        return [f for f in self.fixups if f.form == "array" or f.direction == "in"]


@dataclasses.dataclass(frozen=True)
class Types:
    handles: dict  # C type -> wire::Kind constant, without the k
    null_results: dict  # C type -> CUresult for a null handle
    structs: dict  # C type -> Struct, for structs with fixups; all other structs are plain
    plain: frozenset


@dataclasses.dataclass
class Argument:
    name: str
    type: str
    form: str
    element: str  # the pointed-to type, or the type itself
    kind: str = ""  # for handles
    nullable: bool = False
    count: str = ""  # C++ expression over the parameters
    count_from: str = ""  # the inout parameter that is the count, if any

    @property
    def is_input(self):
        return self.form in INPUTS

    @property
    def is_output(self):
        return self.form in OUTPUTS

    @property
    def element_bytes(self):
        """The size of an array's element on the wire, as a C++ expression."""
        return "sizeof(wire::ObjectId)" if self.kind else f"sizeof({self.element})"


@dataclasses.dataclass
class Function:
    name: str
    family: str
    klass: str
    prototype: Prototype
    arguments: list
    opcode: int = 0
    handwritten_client: bool = False
    handwritten_server: bool = False
    served_in_api: bool = False  # its serve_cuX is in server/executor/calls
    first: str = ""  # a statement; serve_cuX is generated, and calls the driver after it
    does: str = ""  # an expression that a generated serve_cuX returns in place of the driver's result
    is_driver: bool = True  # False: one of rcuda's own calls, with its signature in the table
    route: str = "auto"
    always_outputs: bool = False
    server_after: str = ""
    stream_near: str = ""  # a null stream means the null stream of the worker that owns this address
    owner: bool = False  # forward_cuX takes the owner of the address that the call frees
    older: tuple = ()  # earlier versions with the same prototype, for older drivers
    alias: str = ""  # a call of another function of the table that does the same
    constant: str = ""  # the result of a local function that does nothing
    note: str = ""
    traits: Traits = Traits()

    @property
    def travels(self):
        """Whether the function is sent to a worker. It then has a forward_cuX, an opcode and a handler."""
        return self.opcode != 0

    def argument(self, name):
        return next(a for a in self.arguments if a.name == name)


@dataclasses.dataclass
class Table:
    functions: dict  # name -> Function, in table order
    commands: dict  # name -> commands.Command, likewise
    families: list
    types: Types
    unsupported: dict  # name -> reason
    skipped: list  # table entries the header does not have
    unknown: list  # functions of the header that are neither in the table nor in unsupported.toml


def load_types(path):
    with open(path, "rb") as file:
        raw = tomllib.load(file)
    structs = {}
    for name, members in raw.get("structs", {}).items():
        fixups = tuple(Fixup(path=p, **m) for p, m in members.items())
        structs[name] = Struct(name, fixups)
    handles = {name: entry["kind"] for name, entry in raw["handles"].items()}
    nulls = {name: entry.get("null", "CUDA_ERROR_INVALID_HANDLE")
             for name, entry in raw["handles"].items()}
    return Types(handles, nulls, structs, frozenset(raw.get("plain", [])))


NOTATION = re.compile(r"(in|out|inout|create|named|destroy|optional|null|value)(\?)?(?:\[(.+)\])?")


def argument_of(function_name, parameter, note, types, parameters):
    """The Argument for one parameter, from its C type and its notation (which may be empty)."""
    where = f"{function_name}: {parameter.name}"
    if (note == "blob") != (parameter.type == BLOB):
        raise TableError(f"{where}: blob is for parameters of type Blob* of rcuda's own calls")
    if note == "blob":
        return Argument(parameter.name, parameter.type, "blob", "Blob")
    match = NOTATION.fullmatch(note) if note else None
    if note and not match:
        raise TableError(f"{where}: {note!r} is not a notation for a parameter (api/table/README.md)")
    word, optional, count = (match[1], bool(match[2]), match[3] or "") if match else ("", False, "")

    pointee = parameter.pointee
    if pointee is None or word == "value":
        kind = types.handles.get(parameter.type, "")
        if parameter.type == "CUfunction" and not word:
            return Argument(parameter.name, parameter.type, "function", parameter.type, kind)
        if kind:
            form = "destroy" if word == "destroy" else "handle"
            nullable = word == "optional" or kind == "Stream" and form == "handle"
            return Argument(parameter.name, parameter.type, form, parameter.type, kind, nullable)
        if parameter.type == "CUdevice":
            return Argument(parameter.name, parameter.type, "device", parameter.type)
        if word not in ("", "value"):
            raise TableError(f"{where}: {word} is for pointers and handles, and {parameter.type} is a value")
        form = "struct" if parameter.type in types.structs else "value"
        return Argument(parameter.name, parameter.type, form, parameter.type)

    if word == "null":
        return Argument(parameter.name, parameter.type, "null", pointee)
    if parameter.type == "const char*" and word in ("", "in") and not count:
        return Argument(parameter.name, parameter.type, "string", "char", nullable=optional)
    if not word:
        if not parameter.is_const_pointer or not (
                pointee in types.plain or pointee in types.structs):
            raise TableError(f"{where}: {parameter.type} needs a direction: in, out, inout, create or named")
        word = "in"
    if word not in ("in", "out", "inout", "create", "named"):
        raise TableError(f"{where}: {word} is not for pointers, and {parameter.type} is a pointer")
    kind = types.handles.get(pointee, "")
    if kind and word == "out" or word in HANDLE_OUTPUTS and not kind:
        raise TableError(f"{where}: create and named are for handles, and a handle that is returned needs one of the two")
    element = "char" if pointee in ("void", "char") else pointee
    if pointee == "void" and not count:
        raise TableError(f"{where}: void* needs a length in brackets, such as in[bytes]")
    if not kind and word != "null" and element[0].isupper() and element.endswith("*") is False:
        if element not in types.plain and element not in types.structs and element != "CUdevice":
            raise TableError(f"{where}: {element} is not listed in types.toml")
    argument = Argument(parameter.name, parameter.type, word, element, kind, optional, count)
    if count in parameters and parameters[count].type.endswith("*"):
        argument.count_from = count
    return argument


# Names that generated code uses itself. A parameter with such a name gets a trailing underscore.
RESERVED = {"call", "executor", "function", "in", "it", "name", "objects", "out", "result", "found"}


def without_reserved(prototype):
    parameters = tuple(
        Parameter(p.type, p.name + "_" if p.name in RESERVED else p.name)
        for p in prototype.parameters)
    return Prototype(prototype.name, parameters)


def function_of(name, family, entry, prototype, types, is_driver):
    klass = entry.get("class")
    if klass not in CLASSES:
        raise TableError(f"{name}: class must be one of {', '.join(CLASSES)}")
    known = {"class", "client", "server", "route", "remote", "signature", "always_outputs",
             "server_after", "stream_near", "owner", "as", "result", "note", "first", "does"}
    prototype = without_reserved(prototype)
    names = {p.name: p for p in prototype.parameters}
    for key in entry:
        if key not in known and key not in names and key not in Traits.COLUMNS:
            raise TableError(f"{name}: {key} is neither a parameter nor a property")
    alias = entry.get("as", "")
    travels = not alias and (klass in ("post", "call") or entry.get("remote", False))
    arguments = []
    if travels:
        arguments = [argument_of(name, p, entry.get(p.name, ""), types, names)
                     for p in prototype.parameters]
    function = Function(
        name, family, klass, prototype, arguments,
        opcode=-1 if travels else 0,
        handwritten_client=klass in ("local", "cached", "custom") and "result" not in entry or
        entry.get("client") == "handwritten" or not is_driver,
        handwritten_server=not entry.keys().isdisjoint({"server", "first", "does"}) or not is_driver,
        served_in_api=entry.get("server", "" if is_driver or "does" in entry else "api") == "api",
        first=entry.get("first", ""),
        does=entry.get("does", ""),
        is_driver=is_driver,
        route=entry.get("route", "auto"),
        always_outputs=entry.get("always_outputs", False),
        server_after=entry.get("server_after", ""),
        stream_near=entry.get("stream_near", ""),
        owner=entry.get("owner", False),
        alias=alias,
        constant=entry.get("result", ""),
        note=entry.get("note", ""),
        traits=traits_of(name, entry, travels, arguments))
    if sum(a.form == "blob" for a in arguments) > 1 or function.always_outputs and any(
            a.form == "blob" for a in arguments):
        raise TableError(f"{name}: a call returns at most one blob, and only with success")
    if function.owner and function.route == "auto" and not function.stream_near:
        raise TableError(f"{name}: owner: route or stream_near must have an address")
    if klass == "post" and any(a.is_output and a.form != "create" for a in arguments):
        raise TableError(f"{name}: a function of class post has no reply, so it may have no outputs")
    return function


def traits_of(name, entry, travels, arguments):
    for key in Traits.COLUMNS:
        if key in entry and not travels:
            raise TableError(f"{name}: {key} is for functions that send a command")
    traits = Traits.of(name, entry, None)
    if traits.frees in ("at_once", "in_stream") and (not arguments or arguments[0].type != "CUdeviceptr"):
        raise TableError(f"{name}: frees: the first parameter must be the CUdeviceptr that the function frees")
    return traits


def pseudo_prototype(name, signature):
    parts = [part for part in signature.split(",") if part.strip()]
    return Prototype(name, tuple(parse_parameter(p, i) for i, p in enumerate(parts)))


def read_lock(path):
    opcodes = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line:
            number, name = line.split()
            opcodes[name] = int(number, 16)
    return opcodes


def following(opcodes, first, last):
    """One more than the largest opcode in use from `first` to `last`."""
    number = max((n for n in opcodes.values() if first <= n <= last), default=first - 1) + 1
    if number > last:
        raise TableError(f"no opcodes left between {first:#x} and {last:#x}")
    return number


def assign_opcodes(functions, custom, lock_path, update):
    """Gives every function that is sent and every custom command its number from the lock file.
    Numbers are never reused: a name that left the table keeps its line."""
    opcodes = read_lock(lock_path) if lock_path.exists() else {}
    if len(set(opcodes.values())) != len(opcodes):
        raise TableError(f"{lock_path}: an opcode appears twice")
    travelling = [f for f in functions.values() if f.travels]
    missing = [c.name for c in [*custom.values(), *travelling] if c.name not in opcodes]
    if missing and not update:
        raise TableError(f"{lock_path} lacks {', '.join(missing)}; build the target api-opcodes")
    for name in missing:
        first, last = (1, FIRST_OPCODE - 1) if name in custom else (FIRST_OPCODE, LAST_OPCODE)
        opcodes[name] = following(opcodes, first, last)
    if missing:
        text = ("# Opcodes: custom commands below 0x100, functions from there. Append only: a number\n"
                "# never changes its meaning and is never used again. Written by the target api-opcodes.\n")
        text += "".join(f"0x{number:03x} {name}\n"
                        for name, number in sorted(opcodes.items(), key=lambda item: item[1]))
        lock_path.write_text(text, encoding="utf-8")
    for command in [*custom.values(), *travelling]:
        command.opcode = opcodes[command.name]
        if (command.opcode < FIRST_OPCODE) != (command.name in custom):
            raise TableError(f"{lock_path}: {command.name} has the number {command.opcode:#x}; custom "
                             f"commands are below {FIRST_OPCODE:#x}, functions above")


def entries(raw):
    """Yields (name of a function, its properties): for each table named after a function, then for each function of
    a group."""
    groups = raw.pop("group", [])
    yield from raw.items()
    for group in groups:
        for name in group["functions"]:
            yield name, {key: value for key, value in group.items() if key != "functions"}


def load(folder, toolkit, old_versions, update_lock=False):
    """The table for this toolkit. `old_versions`: the name of the newer symbol to which an old symbol
    forwards; "" if their prototypes differ."""
    folder = pathlib.Path(folder)
    types = load_types(folder / "types.toml")
    functions, custom, families, skipped, unsupported = {}, {}, [], [], {}
    files = {}  # name -> the file of its entry
    for path in sorted(folder.glob("*.toml")):
        if path.name in ("types.toml", "old_versions.toml", "driver_overrides.toml", "nccl.toml"):
            continue
        with open(path, "rb") as file:
            raw = tomllib.load(file)
        family = path.stem
        if family == commands.FAMILY:
            custom = commands.load(raw)
            continue
        if family == "unsupported":
            for group in raw["group"]:
                unsupported |= {name: group["reason"] for name in group["functions"]}
            continue
        families.append(family)
        for name, entry in entries(raw):
            if name in functions:
                raise TableError(f"{name} is in the table twice")
            files[name] = path.name
            if "signature" in entry:
                prototype = pseudo_prototype(name, entry["signature"])
            elif name in toolkit.prototypes:
                prototype = toolkit.prototypes[name]
            else:
                skipped.append(name)
                continue
            functions[name] = function_of(name, family, entry, prototype, types,
                                          "signature" not in entry)
    for name in unsupported:
        if name in files:
            raise TableError(f"{name} is in {files[name]} and in unsupported.toml: remove one of the two")
    for old, new in sorted(old_versions.items(), reverse=True):
        if new in functions:
            functions[new].older += (old,)
    lock_path = folder / "opcodes.lock"
    assign_opcodes(functions, custom, lock_path, update_lock)
    keep_used_structs(types, functions)
    unknown = [p.name for p in toolkit.prototypes.values()
               if p.name not in functions and p.name not in unsupported
               and p.name not in old_versions and not PER_THREAD_SUFFIX.search(p.name)
               and not has_32_bit_addresses(p)]
    return Table(functions, custom, families, types, unsupported, skipped, unknown)


def keep_used_structs(types, functions):
    """Drops structs that no function needs, because an older header may lack them."""
    used = {a.element for f in functions.values() for a in f.arguments}
    for name in [n for n in types.structs if n in used]:
        used |= {fixup.type for fixup in types.structs[name].fixups}
    for name in [n for n in types.structs if n not in used]:
        del types.structs[name]


def has_32_bit_addresses(prototype):
    """Whether it is a function of CUDA 3.1 or earlier, which programs no longer call."""
    text = " ".join(prototype.types)
    return "CUdeviceptr_v1" in text or re.search(r"CUDA_\w+_v1\*", text) is not None \
        or prototype.name in OLDEST


# Functions with 32-bit sizes that have no address in their prototype.
OLDEST = {"cuDeviceTotalMem", "cuMemGetInfo", "cuMemAllocHost", "cuMemcpyHtoA", "cuMemcpyAtoH",
          "cuMemcpyAtoA", "cuMemcpyHtoAAsync", "cuMemcpyAtoHAsync"}
