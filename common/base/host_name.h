// The name of this machine, for logs, status and files.
#pragma once

#include <string>

namespace rcuda {

// Printable ASCII: whatever else a host calls itself comes as '?'. Does not look anything up.
std::string host_name();

}  // namespace rcuda
