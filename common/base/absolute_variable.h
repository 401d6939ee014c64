// Reads a path from an environment variable. Any thread, while no thread changes the environment.
#pragma once

#include <cstdlib>
#include <string>

namespace rcuda {

// Returns an empty text if the variable is not set or its path is not absolute. The XDG base
// directory specification requires programs to ignore relative paths.
inline std::string absolute_variable(const char* variable) {
  const char* const path = ::secure_getenv(variable);
  return path != nullptr && *path == '/' ? path : "";
}

}  // namespace rcuda
