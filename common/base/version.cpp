#include "common/base/version.h"

// The program defines this id (build_id.cpp). The generated file is not in this library, because
// the file changes with each change of a source.
extern "C" const char rcuda_build_id[] __attribute__((weak, visibility("hidden")));

namespace rcuda {

const char* version() { return RCUDA_VERSION; }

std::string build_id() {
  const char* const id = rcuda_build_id;
  return id ? id : "unknown";
}

std::string version_of(const char* tool) {
  return std::string(tool) + " " + version() + " (build " + build_id() + ")";
}

}  // namespace rcuda
