// The version of this build, project(rcuda VERSION) of CMakeLists.txt.
#pragma once

#include <string>

namespace rcuda {

// "rcuda-smi 0.1.0": the output of a tool's --version.
std::string version_of(const char* tool);

}  // namespace rcuda
