// TLS connections between two ends that share a key (TLS 1.3 with an external pre-shared key and
// a fresh Diffie-Hellman exchange): the sockets of a session's Links. A peer without the key is
// refused. The key alone does not suffice to decrypt recorded traffic.
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

// Makes the TLS context of encrypt() now, which takes some milliseconds. Otherwise the first
// encrypt() makes it. Workers call prepare() while they are idle.
void prepare();

// The two ends must have different roles, and start at the same byte of the stream.
Result<Socket> encrypt(UniqueFd socket, const Key& key, Role role,
                       std::chrono::steady_clock::time_point deadline);

// Derives a key for another use. Keys of different labels reveal nothing about each other.
Key derive(const Key& key, std::string_view label);

}  // namespace rcuda::tls
