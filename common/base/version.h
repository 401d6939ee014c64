// The version and the build of the running program. Any thread; nothing blocks.
#pragma once

#include <string>

namespace rcuda {

// Returns the VERSION of project() in CMakeLists.txt: "0.1.1".
const char* version();

// Twelve hexadecimal digits, equal in all programs that are built from the same sources
// (cmake/build_id.cmake). "unknown" in a program that does not link rcuda_build_id.
std::string build_id();

// Returns the output of a tool's --version: "rcuda-smi 0.1.1 (build 1a2b3c4d5e6f)".
std::string version_of(const char* tool);

}  // namespace rcuda
