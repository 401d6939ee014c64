// The text of an error for a peer that breaks the protocol of a Link. The Link ends with this
// error.
#pragma once

#include <string>

namespace rcuda::transport {

// `what`: which message or value of the peer is invalid, and which values are valid.
inline std::string violation(const std::string& what) {
  return "protocol violation: " + what + "; closing the connection";
}

}  // namespace rcuda::transport
