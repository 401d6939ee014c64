// What a session's single sockets use in the place of the session's own secrets. What somebody has
// seen on the network of one socket is then of no use for another one. Any thread; nothing blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/tls/connection.h"

namespace rcuda::wire {

// A session's further sockets have the indexes 0 to kMostSockets - 1, more than any medium opens.
// The last is the control socket of a Link in the place of one that did not come about.
inline constexpr uint32_t kMostSockets = 32;
inline constexpr uint32_t kFallbackSocket = kMostSockets - 1;
inline constexpr uint32_t kControlSocket = ~0u;  // in the place of an index

using AttachToken = std::array<uint8_t, 16>;

// What the secrets below are derived with.
std::string attach_label(uint32_t index);
std::string socket_label(uint32_t index);
std::string peer_socket_label(uint32_t link, uint32_t stream);

// For Attach, which crosses the network in the clear. `token`: from Welcome.
AttachToken attach_token(const uint8_t (&token)[16], uint32_t index);
// The TLS key of a socket between client and worker. `key`: the session's.
tls::Key socket_key(const tls::Key& key, uint32_t index);
// The TLS key of a socket between two workers. `secret`: what the client gave to both; `link` and
// `stream`: as in PeerHello.
tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream);

}  // namespace rcuda::wire
