#include "server/executor/peers/peer_returns.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <openssl/crypto.h>

#include "common/base/log.h"
#include "common/messages/message_io.h"
#include "common/tls/keyed.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

// PeerHello::stream of the socket with this index.
uint32_t stream_of(int index) { return static_cast<uint32_t>(index) + 1; }

}  // namespace

Result<Socket> PeerReturns::secured(const PeerLinkName& link, uint32_t stream, uint32_t attempt,
                                    UniqueFd socket, tls::Role role, Clock::time_point deadline) {
  if (!link.encrypted) return Socket(std::move(socket));
  return tls::encrypt(std::move(socket),
                      wire::peer_socket_key(link.secret, link.hello.link, stream, attempt), role,
                      deadline);
}

transport::Reconnecting PeerReturns::connecting(const PeerLinkName& link,
                                                const wire::PeerAddress& address) {
  transport::Reconnecting how;
  how.limit = link.limit;
  how.connects = true;
  how.peer = link.peer;
  how.next = [link, address,
              attempts = std::make_shared<std::array<std::atomic<uint32_t>, wire::kMostSockets>>()](
                 int index, Clock::time_point deadline) -> Result<Socket> {
    RCUDA_ASSIGN_OR_RETURN(UniqueFd socket, wire::connect_again(address, deadline));
    wire::PeerHello hello = link.hello;
    hello.stream = stream_of(index);
    hello.attempt = ++(*attempts)[static_cast<size_t>(index)];
    std::ranges::copy(wire::peer_attach_token(link.secret, hello.link, hello.stream, hello.attempt),
                      hello.token);
    RCUDA_RETURN_IF_ERROR(wire::write_message(socket.get(), wire::MessageType::kPeerHello,
                                              wire::encode(hello), deadline));
    RCUDA_RETURN_IF_ERROR(wire::read_attached(socket.get(), "the connection", deadline));
    return secured(link, hello.stream, hello.attempt, std::move(socket), tls::Role::kClient,
                   deadline);
  };
  return how;
}

transport::Reconnecting PeerReturns::awaiting(const PeerLinkName& link) {
  const uint32_t name = link.hello.link;
  transport::Reconnecting how;
  how.limit = link.limit;
  how.peer = link.peer;
  how.next = [this, name](int index, Clock::time_point deadline) {
    return next(name, index, deadline);
  };
  how.on_connection = [this, link, name](std::function<void(int)> function) {
    MutexLock lock(mutex_);
    if (!function) {
      awaited_.erase(name);
      came_.notify_all();
      return;
    }
    Awaited& awaited = awaited_[name];
    awaited.name = link;
    awaited.arrive = std::move(function);
  };
  return how;
}

Result<Socket> PeerReturns::next(uint32_t link, int index, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  const auto has_come = [&]() RCUDA_REQUIRES(mutex_) {
    const auto found = awaited_.find(link);
    return found == awaited_.end() || found->second.arrived.contains(index);
  };
  if (!came_.wait_until(lock, deadline, has_come)) {
    return Status(Code::kTimeout, "the other server has not connected again in time");
  }
  const auto found = awaited_.find(link);
  if (found == awaited_.end())
    return Status(Code::kNotFound, "the connection between the servers was closed");
  Arrival arrival = std::move(found->second.arrived.extract(index).mapped());
  const PeerLinkName name = found->second.name;
  lock.unlock();
  // The time is short: the network may lose all packets of this attempt, and the peer's next
  // attempt waits until this attempt has ended.
  constexpr std::chrono::milliseconds kAttempt{3000};
  const auto until = Clock::now() + std::min(handshake_timeout_, kAttempt);
  RCUDA_RETURN_IF_ERROR(
      wire::write_message(arrival.socket.get(), wire::MessageType::kAttached, {}, until));
  return secured(name, stream_of(index), arrival.attempt, std::move(arrival.socket),
                 tls::Role::kServer, until);
}

void PeerReturns::accept(const wire::PeerHello& hello, UniqueFd socket, bool is_being_made) {
  MutexLock lock(mutex_);
  const auto found = awaited_.find(hello.link);
  if (found == awaited_.end()) {
    const wire::Refusal refusal =
        is_being_made ? wire::Refusal{static_cast<uint32_t>(Code::kUnavailable),
                                      "the connection between the servers is still being made"}
                      : wire::Refusal{static_cast<uint32_t>(Code::kNotFound),
                                      "the connection between the servers has ended"};
    lock.unlock();
    (void)wire::write_message(socket.get(), wire::MessageType::kRefusal, wire::encode(refusal),
                              Clock::now());
    return;
  }
  Awaited& awaited = found->second;
  const uint32_t index = hello.stream - 1;
  if (index >= awaited.least.size() || hello.attempt < awaited.least[index] ||
      hello.attempt == UINT32_MAX) {
    return;
  }
  const wire::AttachToken token =
      wire::peer_attach_token(awaited.name.secret, hello.link, hello.stream, hello.attempt);
  if (CRYPTO_memcmp(token.data(), hello.token, token.size()) != 0) {
    // Only one warning: a stranger may make any number of such connections.
    RCUDA_LOG(std::exchange(awaited.has_warned, true) ? LogLevel::kDebug : LogLevel::kWarn,
              "%s: dropped a new connection with an invalid token", awaited.name.peer.c_str());
    return;
  }
  awaited.least[index] = hello.attempt + 1;
  awaited.arrived.insert_or_assign(static_cast<int>(index),
                                   Arrival{hello.attempt, std::move(socket)});
  awaited.arrive(static_cast<int>(index));
  came_.notify_all();
}

}  // namespace rcuda::server
