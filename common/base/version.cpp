#include "common/base/version.h"

// A program that links rcuda_build_id defines this id (build_id.cpp). The file is not a part of
// this library: it changes with every source, so each change would relink all users of the library.
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
