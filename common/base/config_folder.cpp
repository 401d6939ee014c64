#include "common/base/config_folder.h"

#include <cstdlib>

namespace rcuda {
namespace {

std::string absolute(const char* variable) {
  const char* path = std::getenv(variable);
  return path != nullptr && *path == '/' ? path : "";
}

}  // namespace

std::string config_folder() {
  if (const std::string config = absolute("XDG_CONFIG_HOME"); !config.empty()) {
    return config + "/rcuda";
  }
  if (const std::string home = absolute("HOME"); !home.empty()) return home + "/.config/rcuda";
  return {};
}

}  // namespace rcuda
