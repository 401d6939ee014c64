// The secrets of each socket of a session, derived from the session's own secrets. So an
// eavesdropper on one socket cannot use its secrets for another socket. Any thread; nothing blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/tls/connection.h"

namespace rcuda::wire {

// A session's further sockets have the indexes 0 to kMostSockets - 1, more than any medium opens.
// Index kFallbackSocket is the control socket of the Link over the fallback.
inline constexpr uint32_t kMostSockets = 32;
inline constexpr uint32_t kFallbackSocket = kMostSockets - 1;
inline constexpr uint32_t kControlSocket = ~0u;  // in place of an index

using AttachToken = std::array<uint8_t, 16>;
using AttachName = std::array<uint8_t, 8>;

// The labels with which the secrets below are derived. `attempt`: Attach::attempt.
inline constexpr char kAttachNameLabel[] = "rcuda attach name";
std::string attach_label(uint32_t index, uint32_t attempt);
std::string socket_label(uint32_t index, uint32_t attempt);
std::string peer_attach_label(uint32_t link, uint32_t stream, uint32_t attempt);
std::string peer_socket_label(uint32_t link, uint32_t stream, uint32_t attempt);

// Sets `name` to the session's name on connections between workers. It does not reveal the
// session's id.
void session_name(const uint8_t (&session)[16], uint8_t (&name)[16]);
// Returns Attach::session, which names a session without revealing its token.
AttachName attach_name(const uint8_t (&token)[16]);
// Returns Attach::token. An eavesdropper may read the Attach, so each token is for one index and
// attempt only. `token`: from Welcome.
AttachToken attach_token(const uint8_t (&token)[16], uint32_t index, uint32_t attempt);
// Returns the TLS key of a socket between client and worker. `key`: the session's key.
tls::Key socket_key(const tls::Key& key, uint32_t index, uint32_t attempt);
// Returns the TLS key of a socket between two workers. `secret`: the secret that the client gave to
// both workers; `link`, `stream` and `attempt`: as in PeerHello.
tls::Key peer_socket_key(const tls::Key& secret, uint32_t link, uint32_t stream, uint32_t attempt);
// Returns PeerHello::token, for a PeerHello that replaces a socket.
AttachToken peer_attach_token(const tls::Key& secret, uint32_t link, uint32_t stream,
                              uint32_t attempt);

}  // namespace rcuda::wire
