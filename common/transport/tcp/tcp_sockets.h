// The sockets of a TCP Link before it runs: their options, and the further sockets for transfers.
//
// Threads: any. Blocking: only make_streams(): while Bootstrap's functions make the sockets, and
// then for the first messages of the sockets, until `deadline`. Errors: an option that the kernel
// refuses is logged, and the Link works without it.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "common/base/socket.h"
#include "common/base/socket_io.h"
#include "common/base/status.h"
#include "common/transport/link.h"

namespace rcuda::transport {

// Sets the options of a socket: small sends are not delayed, and the kernel detects a lost host.
// `peer_timeout`: LinkOptions::peer_timeout.
void tune(int socket, std::chrono::milliseconds peer_timeout);
// Makes the kernel end the connection if it has unacknowledged bytes, and the peer acknowledges
// none of them for 1.25 times `limit`. The time for which a stopped peer's receive buffer is full
// counts, too. Zero: no limit.
void limit_unacknowledged(const Socket& socket, std::chrono::milliseconds limit);
// recv() returns after this time without data.
void set_receive_timeout(int socket, std::chrono::milliseconds timeout);
// Makes `count` further sockets to the peer. Returns them in the same order on both sides.
Result<std::vector<Socket>> make_streams(const Bootstrap& bootstrap, size_t count,
                                         Deadline deadline);

}  // namespace rcuda::transport
