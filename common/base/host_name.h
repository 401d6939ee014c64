// The name of this machine, for logs, status and files.
#pragma once

#include <string>

namespace rcuda {

// Returns printable ASCII; other characters become '?'. Looks nothing up in the network.
std::string host_name();

}  // namespace rcuda
