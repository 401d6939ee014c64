// PeerReturns: replaces lost connections of the Links over TCP between two workers.
//
// The worker that made the first connection also makes the next ones. It sends a PeerHello with the
// number of the attempt and a token, which is derived from the secret of the introduction and valid
// once. The other worker answers Attached, or Refusal: kNotFound if the Link does not exist any
// more, kUnavailable if it is still being made. With encryption, a TLS handshake with a key for
// this attempt follows.
//
// Threads: any. Blocking: Reconnecting::next, while it waits for the connection. Its errors:
// kNotFound if the Link has ended, kTimeout, and those of the connection. accept() closes
// connections that it refuses.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/messages/handshake.h"
#include "common/reach/connect.h"
#include "common/reach/socket_keys.h"
#include "common/tls/connection.h"
#include "common/transport/link.h"

namespace rcuda::server {

class PeerReturns {
 public:
  struct PeerLinkName {
    wire::PeerHello hello;  // of the Link's control socket
    tls::Key secret{};
    bool encrypted = false;
    std::chrono::milliseconds limit{0};  // how long the connection may be lost
    std::string peer;                    // the other worker's server, for the log
  };
  explicit PeerReturns(std::chrono::milliseconds handshake_timeout)
      : handshake_timeout_(handshake_timeout) {}

  // For the worker that connects to `address`.
  transport::Reconnecting connecting(const PeerLinkName& link, const wire::PeerAddress& address);
  // For the worker that waits for connections. This object outlives the Link.
  transport::Reconnecting awaiting(const PeerLinkName& link);
  // Takes a connection whose PeerHello has the number of an attempt. `is_being_made`: the Link does
  // not await such connections yet, but soon will.
  void accept(const wire::PeerHello& hello, UniqueFd socket, bool is_being_made);

 private:
  struct Arrival {
    uint32_t attempt = 0;
    UniqueFd socket;
  };
  struct Awaited {
    PeerLinkName name;
    std::function<void(int)> arrive;
    std::array<uint32_t, wire::kMostSockets> least{};  // the lowest attempt that is valid
    std::map<int, Arrival> arrived;                    // by index
    bool has_warned = false;                           // of an invalid token
  };
  Result<Socket> next(uint32_t link, int index, std::chrono::steady_clock::time_point deadline);
  static Result<Socket> secured(const PeerLinkName& link, uint32_t stream, uint32_t attempt,
                                UniqueFd socket, tls::Role role,
                                std::chrono::steady_clock::time_point deadline);

  const std::chrono::milliseconds handshake_timeout_;
  Mutex mutex_;
  CondVar came_;
  std::map<uint32_t, Awaited> awaited_ RCUDA_GUARDED_BY(mutex_);  // by PeerHello::link
};

}  // namespace rcuda::server
