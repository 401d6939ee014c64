"""The generator, run on a small made-up API (golden/) and on wrong tables.

Its output for the small API is compared with golden/expected_*; run with --write to accept new output.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
sys.path.insert(0, str(HERE.parents[2] / "api" / "gen"))

import client  # noqa: E402
import commands  # noqa: E402
import coverage  # noqa: E402
import cuda_header  # noqa: E402
import exports  # noqa: E402
import server  # noqa: E402
import server_commands  # noqa: E402
import shared_tables  # noqa: E402
import struct_layouts  # noqa: E402
import stub_library  # noqa: E402
import table  # noqa: E402
import traits  # noqa: E402

COMPILER = os.environ.get("CC", "cc")


def toolkit():
    return cuda_header.read_toolkit(COMPILER, GOLDEN)


def load(folder=GOLDEN / "table", update_lock=False):
    kit = toolkit()
    return table.load(folder, kit, exports.old_versions(kit, {}), update_lock)


class HeaderTest(unittest.TestCase):
    def test_every_version_of_every_function_is_found(self):
        self.assertEqual(list(toolkit().prototypes), [
            "cuInit", "cuWidgetCreate", "cuWidgetCreate_v2", "cuWidgetDestroy",
            "cuWidgetGetChildren", "cuWidgetGetSize", "cuWidgetMove", "cuWidgetPaint",
            "cuWidgetPaint_ptsz", "cuWidgetShow", "cuWidgetShow_ptds"])

    def test_parameters_are_normalised(self):
        paint = toolkit().prototypes["cuWidgetPaint"]
        self.assertEqual(paint.types, ("CUwidget", "CUdeviceptr", "const unsigned char*", "CUstream"))
        self.assertEqual([p.name for p in paint.parameters],
                         ["widget", "pixels", "colour", "hStream"])

    def test_types_of_several_words(self):
        parse = cuda_header.parse_parameter
        self.assertEqual(parse("unsigned flags", 0), cuda_header.Parameter("unsigned", "flags"))
        self.assertEqual(parse("unsigned long long *id", 0).type, "unsigned long long*")
        self.assertEqual(parse("void **p", 0), cuda_header.Parameter("void**", "p"))
        self.assertEqual(parse("int", 2), cuda_header.Parameter("int", "argument2"))
        self.assertEqual(parse("const CUgraphNode **nodes", 0).type, "const CUgraphNode**")

    def test_a_stub_library_has_every_symbol(self):
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder, "stubs", "libcuda.so")
            stub_library.make(COMPILER, GOLDEN, library)
            self.assertEqual(cuda_header.exported_symbols("nm", library), set(toolkit().symbols))
            dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
            self.assertIn("soname: [libcuda.so.1]", dynamic)

    def test_versions(self):
        self.assertEqual(toolkit().versions["cuWidgetCreate"], [5000, 12000])
        self.assertEqual(toolkit().versions["cuWidgetPaint"], [5000])
        self.assertEqual(toolkit().cuda_version, 13000)


class ExportsTest(unittest.TestCase):
    def test_the_version_selects_the_symbol(self):
        rows = exports.symbol_of_versions(toolkit())
        self.assertIn(("cuWidgetCreate", 5000, "cuWidgetCreate"), rows)
        self.assertIn(("cuWidgetCreate", 12000, "cuWidgetCreate_v2"), rows)
        self.assertIn(("cuWidgetDestroy", 2000, "cuWidgetDestroy"), rows)

    def test_old_versions_forward(self):
        served = exports.forwards(toolkit(), {})
        self.assertEqual(served, {"cuWidgetCreate": "return cuWidgetCreate_v2(widget, params, flags);"})

    def test_definitions(self):
        text = exports.emit_definitions(toolkit(), {})
        self.assertIn("rcuda::api::per_thread_stream(hStream)", text)
        self.assertIn("PerThreadDefaultStreamScope scope;\n  return cuWidgetShow(title);", text)
        self.assertIn('"cuWidgetMove",', text)
        self.assertNotIn("cuNotAFunctionOfTheLibrary", text)


class GoldenTest(unittest.TestCase):
    def compare(self, name, text):
        path = GOLDEN / name
        if "--write" in sys.argv:
            path.write_text(text, encoding="utf-8")
        self.assertEqual(path.read_text(encoding="utf-8"), text)

    def test_client(self):
        self.compare("expected_client.cpp.txt", client.emit_family(load(), "widget"))

    def test_server(self):
        self.compare("expected_server.cpp.txt", server.emit_family(load(), "widget"))

    def test_fixups(self):
        loaded = load()
        self.compare("expected_fixups.h.txt",
                     client.emit_fixups(loaded) + server.emit_fixups(loaded))

    def test_opcodes(self):
        self.compare("expected_opcodes.h.txt", shared_tables.emit_opcodes(load()))


    def test_custom_commands(self):
        self.compare("expected_commands.h.txt", commands.emit_header(load()))

    def test_handlers_of_custom_commands(self):
        loaded = load()
        self.compare("expected_server_commands.txt",
                     server_commands.emit_header(loaded) + server_commands.emit_dispatch(loaded))

    def test_traits(self):
        self.compare("expected_traits.h.txt", traits.emit(load()))


class NewerHeaderTest(unittest.TestCase):
    def test_what_the_table_does_not_know_is_listed(self):
        text = coverage.report(load())
        self.assertIn("  cuWidgetShow\n", text)
        self.assertNotIn("cuWidgetMove", text, "32-bit addresses are not news")
        self.assertIn("  cuWidgetOfTheFuture\n", text)

    def test_an_excused_function_is_not(self):
        with changed_table({"unsupported.toml":
                            '[[group]]\nreason = "x"\nfunctions = ["cuWidgetShow"]\n'}) as folder:
            self.assertNotIn("cuWidgetShow", coverage.report(load(folder)))


class changed_table:
    """A copy of the table with other files in it."""

    def __init__(self, files):
        self.files = files

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        for path in (GOLDEN / "table").iterdir():
            shutil.copy(path, self.folder)
        for name, text in self.files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        return self.folder

    def __exit__(self, *_):
        shutil.rmtree(self.folder)


class WrongTableTest(unittest.TestCase):
    def refuse(self, entry, complaint):
        with changed_table({"widget.toml": entry, "opcodes.lock": "0x100 cuWidgetGetSize\n",
                            "commands.toml": ""}) as folder:
            with self.assertRaisesRegex(table.TableError, complaint):
                load(folder)

    def test_pointer_without_direction(self):
        self.refuse('[cuWidgetGetSize]\nclass = "call"\nwidth = "out"\n',
                    "height: size_t\\* needs a direction")

    def test_a_function_that_is_served_is_not_unsupported(self):
        excuse = '[[group]]\nreason = "x"\nfunctions = ["cuWidgetGetSize"]\n'
        with changed_table({"unsupported.toml": excuse}) as folder:
            with self.assertRaisesRegex(table.TableError, "cuWidgetGetSize is in widget.toml and in unsupported.toml"):
                load(folder)

    def test_no_such_parameter(self):
        self.refuse('[cuWidgetGetSize]\nclass = "call"\ndepth = "out"\n', "depth is neither")

    def test_no_such_class(self):
        self.refuse('[cuInit]\nclass = "remote"\n', "class must be one of")

    def test_notation(self):
        self.refuse('[cuWidgetGetSize]\nclass = "call"\nwidth = "outward"\n', "'outward' is not a notation")

    def test_posted_calls_bring_nothing_back(self):
        self.refuse('[cuWidgetGetSize]\nclass = "post"\nwidth = "out"\nheight = "out"\n',
                    "so it may have no outputs")

    def test_an_owner_is_that_of_an_address(self):
        self.refuse('[cuWidgetDestroy]\nclass = "call"\nwidget = "destroy"\nowner = true\n',
                    "cuWidgetDestroy: owner: route or stream_near must have an address")

    def test_handles_come_back_as_objects(self):
        self.refuse('[cuWidgetCreate_v2]\nclass = "call"\nwidget = "out"\n', "create and named")

    def test_blobs(self):
        self.refuse('[cuWidgetGetSize]\nclass = "call"\nwidth = "blob"\nheight = "out"\n',
                    "cuWidgetGetSize: width: blob is for parameters of type Blob")
        own = '[rcuda_picture]\nclass = "{}"\nsignature = "CUwidget widget, {}"\n{}'
        self.refuse(own.format("call", "Blob* a", 'a = "out"\n'), "rcuda_picture: a: blob is for")
        self.refuse(own.format("call", "Blob* a, Blob* b", 'a = "blob"\nb = "blob"\n'),
                    "rcuda_picture: a call returns at most one blob")
        self.refuse(own.format("post", "Blob* a", 'a = "blob"\n'), "so it may have no outputs")

    def test_unlisted_structs_do_not_cross(self):
        types = (GOLDEN / "table" / "types.toml").read_text().split("[structs")[0]
        with changed_table({"types.toml": types}) as folder:
            with self.assertRaisesRegex(table.TableError, "CUwidgetParams"):
                load(folder)

    def test_an_entry_without_opcode(self):
        with changed_table({"opcodes.lock": "0x100 cuWidgetCreate_v2\n"}) as folder:
            with self.assertRaisesRegex(table.TableError, "lacks .*cuWidgetDestroy.*api-opcodes"):
                load(folder)

    def test_opcodes_are_appended_and_never_reused(self):
        with changed_table({"opcodes.lock":
                            "0x100 cuWidgetGone\n0x105 cuWidgetPaint\n0x003 Gone\n"}) as folder:
            loaded = load(folder, update_lock=True)
            self.assertEqual(loaded.commands["Knock"].opcode, 0x004)
            self.assertEqual(loaded.functions["cuWidgetPaint"].opcode, 0x105)
            self.assertEqual(loaded.functions["cuWidgetCreate_v2"].opcode, 0x106)
            self.assertIn("0x100 cuWidgetGone", (folder / "opcodes.lock").read_text())

    def test_an_opcode_twice(self):
        with changed_table({"opcodes.lock": "0x100 cuA\n0x100 cuB\n"}) as folder:
            with self.assertRaisesRegex(table.TableError, "appears twice"):
                load(folder)


    def test_a_custom_command_has_no_functions_number(self):
        lock = (GOLDEN / "table" / "opcodes.lock").read_text().replace("0x001 Knock", "0x200 Knock")
        with changed_table({"opcodes.lock": lock}) as folder:
            with self.assertRaisesRegex(table.TableError, "Knock has the number 0x200"):
                load(folder)


class WrongTraitsTest(unittest.TestCase):
    """Columns of functions, and custom commands, with missing, unknown or contradictory properties."""

    def refuse(self, complaint, files):
        with changed_table(files) as folder:
            with self.assertRaisesRegex(table.TableError, complaint):
                load(folder)

    def refuse_function(self, entry, complaint):
        self.refuse(complaint, {"widget.toml": entry, "opcodes.lock": "0x100 cuWidgetGetSize\n"
                                "0x101 cuWidgetDestroy\n", "commands.toml": ""})

    def refuse_command(self, changes, complaint):
        """The golden command PaintMany with changed properties; None removes a property."""
        with open(GOLDEN / "table" / "commands.toml", "rb") as file:
            entry = tomllib.load(file)["PaintMany"]
        entry = {key: value for key, value in (entry | changes).items() if value is not None}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in entry.items()]
        self.refuse(complaint, {"commands.toml": "[PaintMany]\n" + "".join(lines),
                                "opcodes.lock": "0x002 PaintMany\n"})

    def test_a_custom_command_says_what_it_is(self):
        for column in ("while_held", "queues", "device_work"):
            self.refuse_command({column: None}, f"PaintMany: {column} is missing")

    def test_words(self):
        self.refuse_command({"while_held": "never"}, "PaintMany: while_held must be one of waits, asks")
        self.refuse_command({"queues": "a lot"}, "PaintMany: queues must be one of work")
        self.refuse_command({"waits_for_device": "yes"}, "waits_for_device must be true or false")
        self.refuse_command({"any_context": "yes"}, "any_context must be true or false")
        self.refuse_command({"class": "custom"}, "PaintMany: class must be one of post, call")
        self.refuse_command({"priority": 1}, "PaintMany: priority is not a property")
        self.refuse_command({"server": "api"}, "PaintMany: server must be")
        self.refuse_function('[cuWidgetDestroy]\nclass = "post"\nwidget = "destroy"\nfrees = "all"\n',
                             "cuWidgetDestroy: frees must be one of at_once, in_stream, context")

    def test_members_that_a_column_needs(self):
        self.refuse_command({"body": "uint32_t stream"}, "PaintMany: holds_stream: .*no uint32_t link")
        self.refuse_command({"device_work": "place"}, "PaintMany: device_work: .*no uint32_t place")
        self.refuse_command({"holds_stream": "state & kHolds"}, "holds_stream: .*no uint32_t state")
        self.refuse_command({"holds_stream": "when it likes"}, "holds_stream must be true or")
        self.refuse_command({"holds_stream": None}, "PaintMany: queues: if_it_holds needs holds_stream")
        self.refuse_command({"body": "uint32_t word", "device_work": None, "holds_stream": None,
                             "queues": "work"}, "PaintMany: body: a completion word is two members")
        self.refuse_command({"frees": "context"}, "PaintMany: frees is for functions")
        self.refuse_command({"server": "loop"}, "PaintMany: while_held: asks needs a handler")

    def test_bodies(self):
        self.refuse_command({"body": "uint32_t"}, "PaintMany: body: cannot read 'uint32_t'")
        self.refuse_command({"body": "uint32_t a\nuint64_t a"}, "PaintMany: body: a appears twice")
        self.refuse_command({"body": "uint32_t a[]"}, "PaintMany: body: an array needs a length")
        self.refuse_command({"tail": "char a[size]"}, "PaintMany: tail: a has the length size, which is not a member")
        self.refuse_command({"body": "Elsewhere"}, "PaintMany: body: the command Elsewhere does not exist, or declares no body")
        self.refuse_command({"reply": "uint32_t a"}, "PaintMany: a command of class post has no reply")

    def test_traits_of_functions(self):
        size = '[cuWidgetGetSize]\nclass = "call"\nwidth = "out"\nheight = "out"\n'
        self.refuse_function(size + 'while_held = "asks"\n', "while_held: asks is for custom commands")
        self.refuse_function(size + 'queues = "nothing"\n', "queues is for custom commands")
        self.refuse_function(size + 'device_work = "hStream"\n', "device_work is for custom commands")
        self.refuse_function(size + 'frees = "at_once"\n', "frees: .*waits_for_device must be true")
        self.refuse_function(size + 'frees = "in_stream"\n', "frees: the first parameter must be the CUdeviceptr")
        self.refuse_function('[cuInit]\nclass = "local"\nwhile_held = "passes"\n',
                             "cuInit: while_held is for functions that send a command")

    def test_an_opcode_is_needed(self):
        with changed_table({"opcodes.lock": "0x100 cuWidgetCreate_v2\n"}) as folder:
            with self.assertRaisesRegex(table.TableError, "lacks Knock.*api-opcodes"):
                load(folder)


class HashTest(unittest.TestCase):
    def hashes(self, folder=GOLDEN / "table", layouts=None):
        """Name of a command -> hash."""
        loaded = load(folder)
        hashes = shared_tables.command_hashes(loaded, layouts or toolkit().layouts)
        return {c.name: hashes[c.opcode] for c in [*loaded.commands.values(), *shared_tables.by_opcode(loaded)]}

    def changed_by(self, **changes):
        before, after = self.hashes(), self.hashes(**changes)
        return {name for name in before if before[name] != after[name]}

    def changed_by_text(self, file, old, new):
        text = (GOLDEN / "table" / file).read_text()
        self.assertIn(old, text)
        with changed_table({file: text.replace(old, new)}) as folder:
            return self.changed_by(folder=folder)

    def test_a_change_of_the_table_changes_one_command(self):
        self.assertEqual(self.changed_by(), set())
        self.assertEqual(self.changed_by_text("widget.toml", '"out?"', '"out"'), {"cuWidgetGetSize"})
        self.assertEqual(self.changed_by_text("widget.toml", "in[3]", "in[4]"), {"cuWidgetPaint"})
        self.assertEqual(self.changed_by_text("commands.toml", "uint32_t width", "uint64_t width"), {"Ask"})
        self.assertEqual(self.changed_by_text("widget.toml", '"out?"', '"out?"\nnote = "none"'), set())

    def test_traits_are_each_sides_own(self):
        self.assertEqual(self.changed_by_text("widget.toml", 'while_held = "queues"', 'while_held = "passes"'), set())

    def test_the_layout_of_a_struct_changes_who_takes_it(self):
        layouts = toolkit().layouts
        self.assertIn("void *hint;", layouts["CUwidgetParams"])
        layouts["CUwidgetParams"] = layouts["CUwidgetParams"].replace("void *hint;", "void *hint; int more;")
        self.assertEqual(self.changed_by(layouts=layouts), {"cuWidgetCreate_v2", "PaintMany", "PaintOne"})

    def test_a_layout_includes_what_it_consists_of(self):
        layouts = cuda_header.parse_layouts(
            "typedef struct CUinner_st { union { int a; struct { char b; } c; } d; } CUinner_v1;\n"
            "typedef CUinner_v1 CUinner;\ntypedef struct { CUinner in[2]; CUthing *t; } CUouter;\n"
            "typedef struct CUthing_st *CUthing;\n# 1 \"x\"\nstruct cuNamed { int a; };\ntypedef enum { A } CUkind;\n")
        self.assertEqual([name for name, _ in shared_tables.layouts_of(["const CUouter*"], layouts)],
                         ["CUinner", "CUinner_st", "CUinner_v1", "CUouter"])
        self.assertIn("cuNamed", layouts)
        self.assertNotIn("CUkind", layouts)

    def test_what_follows_a_body_has_a_layout(self):
        tail = "CUwidgetParams widgets[]"
        for other in ("CUwidgetParams widgets[link]", "CUwidgetParams gadgets[]", "CUwidget widgets[]"):
            self.assertEqual(self.changed_by_text("commands.toml", tail, other), {"PaintMany", "PaintOne"}, other)
        self.assertEqual(self.changed_by_text("commands.toml", "char name[width]", "char name[]"), {"Ask"})

    def test_prose_is_not_hashed(self):
        for comment in ("// Which completion word.", "// the other worker", "// From left to right.",
                        "// in the same order"):
            self.assertEqual(self.changed_by_text("commands.toml", comment, "// Something else."), set(), comment)


HEADER = """
// A comment.
#include <cstdint>

namespace rcuda::wire {

inline constexpr uint32_t kMost = 4u << 10;
using Digest = std::array<uint8_t, 32>;

enum class Kind : uint32_t { kFirst = 1, kSecond };

struct Message {
  static constexpr Kind kKind = Kind::kFirst;
  uint64_t offset = 0, bytes{7};  // in the region
  std::array<char, 16> name{};
  Status check(const char* what) const { return Status("it is " + std::string(what) + "; try again"); }
};
static_assert(sizeof(Message) == 32);

class Reader {
  int position_ = 0;
};
template <typename T>
T read(std::span<const std::byte> bytes);
inline bool valid(Kind kind) {
  if (kind == Kind::kFirst) return true;
  return false;
}

}  // namespace rcuda::wire
"""


class StructLayoutTest(unittest.TestCase):
    def test_what_a_header_declares(self):
        self.assertEqual(struct_layouts.layout(HEADER).splitlines(), [
            "inline constexpr uint32_t kMost = 4u < < 10",
            "using Digest = std : : array < uint8_t , 32 >",
            "enum class Kind : uint32_t { kFirst = 1 , kSecond }",
            "struct Message { static constexpr Kind kKind = Kind : : kFirst ; uint64_t offset , bytes ; "
            "std : : array < char , 16 > name }",
            "static_assert ( sizeof ( Message ) = = 32 )"])

    def changes(self, old, new):
        self.assertIn(old, HEADER)
        return struct_layouts.layout(HEADER.replace(old, new)) != struct_layouts.layout(HEADER)

    def test_a_field_changes_it(self):
        for old, new in (("offset", "place"), ("uint64_t offset", "uint32_t offset"),
                         ("offset = 0, bytes{7}", "bytes, offset"), ("char, 16", "char, 17"), ("4u << 10", "4u << 11"),
                         ("kSecond", "kOther"), ("= 1, kSecond", "= 2, kSecond"), ("uint8_t, 32", "uint8_t, 33"),
                         ("uint64_t offset = 0", "uint64_t more = 0; uint64_t offset = 0")):
            self.assertTrue(self.changes(old, new), new)

    def test_anything_else_does_not(self):
        for old, new in (("A comment", "Another"), ("in the region", "of it"), ("it is ", "that is {"),
                         ("what", "name_of_it"), ("offset = 0", "offset=1"), ("position_", "place_"),
                         ("enum class Kind :", "enum class Kind\n    :"), ("bool valid", "bool is_valid"),
                         ("return true", "return kind != Kind::kSecond")):
            self.assertFalse(self.changes(old, new), new)

    # In every header, comments and texts are not part of the layout, and a new struct is.
    def test_every_header(self):
        repository = HERE.parents[2]
        for name in struct_layouts.HEADERS:
            text = (repository / name).read_text()
            layout = struct_layouts.layout(text)
            reworded = re.sub(r'"[^"\n]*"', '"another text"', re.sub(r"//.*", "// Another comment.", text))
            self.assertEqual(struct_layouts.layout(reworded.replace('#include "another text"', "")), layout, name)
            self.assertNotEqual(struct_layouts.layout(text + "struct More { int member; };"), layout, name)

    def test_the_build_watches_every_header(self):
        build = (HERE.parents[2] / "api" / "CMakeLists.txt").read_text()
        for name in struct_layouts.HEADERS:
            self.assertIn(name, build)


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--write"])
