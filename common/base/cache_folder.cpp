#include "common/base/cache_folder.h"

#include <cstdlib>

namespace rcuda {
namespace {

// These variables must hold absolute paths (XDG base directory specification); others are ignored.
std::string absolute(const char* variable) {
  const char* path = std::getenv(variable);
  return path != nullptr && *path == '/' ? path : "";
}

}  // namespace

std::string cache_folder() {
  if (std::string service = absolute("CACHE_DIRECTORY"); !service.empty()) return service;
  if (const std::string cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache + "/rcuda";
  if (const std::string home = absolute("HOME"); !home.empty()) return home + "/.cache/rcuda";
  return {};
}

}  // namespace rcuda
