// A path that an environment variable names. Any thread, while no thread changes the environment.
#pragma once

#include <cstdlib>
#include <string>

namespace rcuda {

// Returns an empty text if the variable is not set or its path is not absolute: such variables are
// ignored (XDG base directory specification).
inline std::string absolute_variable(const char* variable) {
  const char* const path = ::secure_getenv(variable);
  return path != nullptr && *path == '/' ? path : "";
}

}  // namespace rcuda
