"""Generates DriverTable: one pointer of exact type per driver function, filled by dlsym."""

from emit import NOTICE
from exports import newer_functions


def emit_header(toolkit):
    lines = ["""// DriverTable: a CUDA driver as a table of functions, whichever library it came from.
//
// The server and the tests load NVIDIA's driver or softgpu with load(), and link against neither.
// A member is null if the driver lacks the function: the library does not export it, or the version
// of cuDriverGetVersion is below the version that introduced the function (a library may export
// more than its version has). The table is filled once and then read from any thread; the library
// stays loaded until the process ends.
""", NOTICE, """#pragma once

#include <cuda.h>
#include <cudaProfiler.h>

#include "common/base/status.h"

namespace rcuda::api {

struct DriverTable {
"""]
    lines += [f"  decltype(&::{name}) {name} = nullptr;\n" for name in toolkit.prototypes]
    lines.append("""};

// Loads `path` (a file, or a name dlopen finds, such as "libcuda.so.1") with RTLD_LOCAL. Fails with
// kNotFound when it cannot be loaded and kUnsupported when it is not a CUDA driver.
Status load(DriverTable* table, const char* path);

}  // namespace rcuda::api
""")
    return "".join(lines)


def emit_visitor(toolkit):
    lines = ["""// visit_functions: calls `visit` with every member of a DriverTable, for tests that fill a table.
""", NOTICE, """#pragma once

#include "api/driver_table.h"

namespace rcuda::api {

template <typename Visit>
void visit_functions(DriverTable& table, Visit visit) {
"""]
    lines += [f"  visit(table.{name});\n" for name in toolkit.prototypes]
    lines.append("}\n\n}  // namespace rcuda::api\n")
    return "".join(lines)


def emit_source(toolkit):
    lines = [NOTICE, """#include "api/driver_table.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace rcuda::api {
namespace {

struct Slot {
  const char* name;
  size_t offset;
  int version;  // introduced the function; 0: every driver has it
};
const Slot kSlots[] = {
"""]
    newer = newer_functions(toolkit)
    lines += [f'    {{"{name}", offsetof(DriverTable, {name}), {newer.get(name, 0)}}},\n'
              for name in toolkit.prototypes]
    lines.append("""};

void set(DriverTable* table, const Slot& slot, void* function) {
  std::memcpy(reinterpret_cast<char*>(table) + slot.offset, &function, sizeof(function));
}

}  // namespace

Status load(DriverTable* table, const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kNotFound, std::string("no CUDA driver: ") + dlerror());
  }
  *table = {};
  for (const Slot& slot : kSlots) {
    set(table, slot, dlsym(library, slot.name));
  }
  if (table->cuInit == nullptr || table->cuDeviceGetCount == nullptr) {
    *table = {};
    dlclose(library);
    return Status(Code::kUnsupported, std::string(path) + " is not a CUDA driver: it has no cuInit");
  }
  int version = 0;
  if (table->cuDriverGetVersion && table->cuDriverGetVersion(&version) == CUDA_SUCCESS) {
    for (const Slot& slot : kSlots) {
      if (slot.version > version) set(table, slot, nullptr);
    }
  }
  return {};
}

}  // namespace rcuda::api
""")
    return "".join(lines)
