// TLS connections between two ends that share a key (TLS 1.3 with an external pre-shared key and
// a fresh Diffie-Hellman exchange): the sockets of a session's Links. A peer without the key is
// refused; what was recorded cannot be read later with the key.
//
// Threads: any. Blocking: until the handshake is done, or until the deadline. Errors: kDenied if
// the peer does not have the key, kTimeout, kUnavailable.
#pragma once

#include <chrono>
#include <string_view>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/tls/connection.h"

namespace rcuda::tls {

// Does what the first encrypt() of a process would do, some milliseconds of it. A worker calls it
// while it is idle.
void prepare();

// The two ends have different roles, and both start at the same byte of the stream.
Result<Socket> encrypt(UniqueFd socket, const Key& key, Role role,
                       std::chrono::steady_clock::time_point deadline);

// Another key, for another use. Keys of different labels tell nothing about each other.
Key derive(const Key& key, std::string_view label);

}  // namespace rcuda::tls
