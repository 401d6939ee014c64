// Finds out whether two processes run on one host.
#pragma once

#include <string>

namespace rcuda::p2p {

// Returns a text that identifies the running kernel: two processes that get the same text are on
// one host. Any thread.
std::string host_identity();

}  // namespace rcuda::p2p
