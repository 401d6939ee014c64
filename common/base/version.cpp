#include "common/base/version.h"

namespace rcuda {

std::string version_of(const char* tool) { return std::string(tool) + " " RCUDA_VERSION; }

}  // namespace rcuda
