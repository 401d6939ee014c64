// host_identity(): shows whether two processes run on one host.
#pragma once

#include <string>

namespace rcuda::p2p {

// Identifies the running kernel: two processes that get the same text are on one host. Any thread.
std::string host_identity();

}  // namespace rcuda::p2p
