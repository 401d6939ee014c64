#include "server/executor/memory/shared_allocations.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"

namespace rcuda::server {
namespace {

// In the abstract namespace: nothing to clean up after a worker that was killed.
socklen_t address_of(uint32_t pid, const uint8_t (&name)[16], sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  char* text = address->sun_path + 1;
  int length = std::snprintf(text, sizeof address->sun_path - 1, "rcuda-allocations-%u-", pid);
  for (const uint8_t byte : name) {
    length += std::snprintf(text + length, sizeof address->sun_path - 1 - length, "%02x", byte);
  }
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Deadline in_a_second() { return std::chrono::steady_clock::now() + std::chrono::seconds(1); }

}  // namespace

SharedAllocations::~SharedAllocations() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

Status SharedAllocations::listen() {
  if (thread_.joinable()) return {};
  if (::getrandom(name_.data(), name_.size(), 0) != static_cast<ssize_t>(name_.size())) {
    return Status::from_errno(errno, "getrandom");
  }
  uint8_t name[16];
  std::memcpy(name, name_.data(), sizeof name);
  sockaddr_un address;
  const socklen_t length = address_of(static_cast<uint32_t>(::getpid()), name, &address);
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!listener_ || !stop_ ||
      ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    return Status::from_errno(errno, "a socket for exported allocations");
  }
  return start_thread(&thread_, [this] { serve(); });
}

Result<wire::AllocationToken> SharedAllocations::add(UniqueFd descriptor) {
  RCUDA_RETURN_IF_ERROR(listen());
  wire::AllocationToken token{};
  token.magic = wire::AllocationToken::kMagic;
  token.worker_pid = static_cast<uint32_t>(::getpid());
  std::memcpy(token.socket, name_.data(), sizeof token.socket);
  if (::getrandom(token.secret, sizeof token.secret, 0) !=
      static_cast<ssize_t>(sizeof token.secret)) {
    return Status::from_errno(errno, "getrandom");
  }
  Secret secret;
  std::memcpy(secret.data(), token.secret, secret.size());
  std::lock_guard lock(mutex_);
  kept_[secret] = std::make_shared<const UniqueFd>(std::move(descriptor));
  return token;
}

bool SharedAllocations::remove(const wire::AllocationToken& token) {
  Secret secret;
  std::memcpy(secret.data(), token.secret, secret.size());
  std::lock_guard lock(mutex_);
  return kept_.erase(secret) == 1;
}

std::shared_ptr<const UniqueFd> SharedAllocations::find(const Secret& secret) {
  std::lock_guard lock(mutex_);
  const auto found = kept_.find(secret);
  return found == kept_.end() ? nullptr : found->second;
}

Result<UniqueFd> SharedAllocations::import_descriptor(const wire::AllocationToken& token) {
  if (token.magic != wire::AllocationToken::kMagic) {
    return Status(Code::kInvalidArgument, "no token of an exported allocation");
  }
  Secret secret;
  std::memcpy(secret.data(), token.secret, secret.size());
  if (const auto own = find(secret)) {
    UniqueFd copy(::fcntl(own->get(), F_DUPFD_CLOEXEC, 3));
    if (!copy) return Status::from_errno(errno, "a descriptor of an exported allocation");
    return copy;
  }
  sockaddr_un address;
  const socklen_t length = address_of(token.worker_pid, token.socket, &address);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Status::from_errno(errno, "socket");
  const timeval second{1, 0};  // limits connect(), which waits while the backlog is full
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return Status::from_errno(errno, "the worker that exported an allocation");
  }
  const Deadline deadline = in_a_second();
  Status asked = send_all(socket.get(), bytes_of(secret), deadline);
  std::byte answer{};
  std::vector<UniqueFd> descriptors;
  if (asked.ok()) {
    asked = recv_with_fds(socket.get(), writable_bytes_of(answer), descriptors, deadline);
  }
  if (!asked.ok()) return std::move(asked).with_context("asking for an exported allocation");
  if (descriptors.empty()) {
    return Status(Code::kNotFound, "the allocation is not exported any more");
  }
  return std::move(descriptors.front());
}

bool SharedAllocations::rest(std::chrono::milliseconds time) {
  pollfd stopped{stop_.get(), POLLIN, 0};
  (void)::poll(&stopped, 1, static_cast<int>(time.count()));
  return stopped.revents == 0;
}

void SharedAllocations::serve() {
  ::pthread_setname_np(::pthread_self(), "rcuda-exports");
  constexpr std::chrono::milliseconds kRest(100);
  bool warned = false;
  for (;;) {
    pollfd items[] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (::poll(items, 2, -1) < 0 && errno != EINTR) return;
    if (items[0].revents) return;
    if (!(items[1].revents & POLLIN)) continue;
    const UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer) {
      // The caller stays in the backlog, so poll() would return at once again.
      if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
      if (!std::exchange(warned, true)) {
        RCUDA_WARN(
            "exported memory cannot be passed on for now: %s (is the limit on open files, "
            "ulimit -n, reached?)",
            std::strerror(errno));
      }
      if (!rest(kRest)) return;
      continue;
    }
    warned = false;
    const Deadline deadline = in_a_second();
    Secret secret;
    if (!recv_all(peer.get(), writable_bytes_of(secret), deadline).ok()) {
      continue;
    }
    const auto descriptor = find(secret);
    const int passed = descriptor ? descriptor->get() : -1;
    (void)send_with_fds(peer.get(), bytes_of(std::byte{}), {&passed, descriptor ? 1u : 0u},
                        deadline);
  }
}

}  // namespace rcuda::server
