// The version and the build of the running program. Any thread; nothing blocks.
#pragma once

#include <string>

namespace rcuda {

// project(rcuda VERSION) of CMakeLists.txt: "0.1.1".
const char* version();

// The first 12 hexadecimal digits of the identifier that the linker has given to the program's
// file, as `readelf -n` prints it: equal for equal files. "unknown" without one.
std::string build_id();

// "rcuda-smi 0.1.1 (build 1a2b3c4d5e6f)": the output of a tool's --version.
std::string version_of(const char* tool);

}  // namespace rcuda
