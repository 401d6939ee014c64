#include "client/process/peers.h"

#include <algorithm>
#include <string>

#include "client/session/session.h"
#include "common/base/random_bytes.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Whether the address is a loopback address, which names a different machine on each host.
bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

// Introduces `other` to the worker of `to`. Ignores the result of the post: if the session is lost,
// its next call reports the loss.
void post_introduction(Session& to, const Session& other, wire::PeerIntroduceBody body,
                       bool connects) {
  const std::string& host = other.server().host;
  body.worker = other.index();
  body.connects = connects;
  body.port = other.server().port;
  body.host_bytes = static_cast<uint16_t>(host.size());
  (void)to.post(to.in_context(0), {body, std::as_bytes(std::span(host))});
}

}  // namespace

void Peers::introduce_all(const std::vector<std::unique_ptr<Session>>& sessions) {
  for (size_t i = 0; i < sessions.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      uint32_t name = 0;
      (void)link(*sessions[j], *sessions[i], &name);
    }
  }
}

CUresult Peers::wake(Session& one, Session& other) {
  {
    MutexLock lock(mutex_);
    if (links_.contains(std::minmax<const Session*>(&one, &other))) return CUDA_SUCCESS;
  }
  // While the second session waits for room, the first session may be parked again.
  while (one.is_parked() || other.is_parked()) {
    RCUDA_RETURN_IF_CUDA_ERROR(one.wake());
    RCUDA_RETURN_IF_CUDA_ERROR(other.wake());
  }
  return CUDA_SUCCESS;
}

CUresult Peers::link(Session& one, Session& other, uint32_t* link) {
  if (one.lost() || other.lost()) return kSessionLost;
  const Pair pair = std::minmax<const Session*>(&one, &other);
  MutexLock lock(mutex_);
  if (const auto known = links_.find(pair); known != links_.end()) {
    *link = known->second;
    return CUDA_SUCCESS;
  }
  wire::PeerIntroduceBody body{};
  body.link = next_link_++;
  body.workers = workers_;
  body.reconnect_ms = std::min(one.reconnect_ms(), other.reconnect_ms());
  body.encrypted = one.must_encrypt() || other.must_encrypt() ? 2
                   : one.encrypted() || other.encrypted()     ? 1
                                                              : 0;
  if (!fill_randomly(body.token).ok()) return CUDA_ERROR_OPERATING_SYSTEM;
  // Other hosts cannot use a loopback address. So if only `other` has such an address, its worker
  // connects to the worker of `one`.
  const bool other_way = is_loopback(other.server().host) && !is_loopback(one.server().host);
  // Sent under the lock, so that no command names the connection before the worker knows it.
  post_introduction(one, other, body, !other_way);
  post_introduction(other, one, body, other_way);
  links_[pair] = body.link;
  *link = body.link;
  return CUDA_SUCCESS;
}

void Peers::forget(const Session& session) {
  MutexLock lock(mutex_);
  std::erase_if(links_, [&](const auto& entry) {
    return entry.first.first == &session || entry.first.second == &session;
  });
}

}  // namespace rcuda::client
