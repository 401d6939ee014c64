// Whether two processes run on one host.
#pragma once

#include <string>

namespace rcuda::p2p {

// Identifies the running kernel: two processes that read the same text share a host. Any thread.
std::string host_identity();

}  // namespace rcuda::p2p
