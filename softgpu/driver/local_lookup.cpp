#include "softgpu/driver/local_lookup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/base/random_bytes.h"
#include "common/base/socket_io.h"
#include "common/base/start_thread.h"

namespace softgpu::driver {
namespace {

using rcuda::Code;
using rcuda::Deadline;
using rcuda::Result;
using rcuda::Status;
using rcuda::UniqueFd;

struct Request {
  LookupKey key;
  uint32_t kind;
  uint32_t reserved;
};
static_assert(sizeof(Request) == 24);

struct Answer {
  LookupNote note;
  uint64_t found;
};
static_assert(sizeof(Answer) == 120);

// In the abstract namespace, so a killed process leaves no socket file.
Status address_of(const std::string& name, sockaddr_un* address, socklen_t* length) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (name.size() > sizeof address->sun_path - 1) {
    return {Code::kInvalidArgument, "the name of a local socket is too long: " + name};
  }
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return {};
}

bool is_of_our_user(int socket) {
  const rcuda::Result<ucred> peer = rcuda::peer_credentials(socket);
  return peer && peer->uid == ::geteuid();
}

bool is_of_root(int socket) {
  const rcuda::Result<ucred> peer = rcuda::peer_credentials(socket);
  return peer && peer->uid == 0;
}

Deadline in_a_second() { return std::chrono::steady_clock::now() + std::chrono::seconds(1); }

Status not_found() {
  return {Code::kNotFound,
          "the exporting process has ended, has released the object, or belongs "
          "to another user"};
}

}  // namespace

Result<LookupKey> make_lookup_key() {
  LookupKey key;
  RCUDA_RETURN_IF_ERROR(rcuda::fill_randomly(key));
  return key;
}

// ---- server ------------------------------------------------------------------------------------

LookupServer::~LookupServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

Status LookupServer::start(const std::string& name, const char* thread, Find find, Serves serves) {
  sockaddr_un address;
  socklen_t length = 0;
  RCUDA_RETURN_IF_ERROR(address_of(name, &address, &length));
  listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  stop_.reset(::eventfd(0, EFD_CLOEXEC));
  // The server receives no descriptors; it only sends them.
  (void)rcuda::take_descriptors(listener_.get(), false);
  if (!listener_ || !stop_ ||
      ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), 64) != 0) {
    return Status::from_errno(errno, "making a local socket for other processes");
  }
  find_ = std::move(find);
  serves_ = serves;
  return rcuda::start_thread(&thread_, [this, thread] {
    ::pthread_setname_np(::pthread_self(), thread);
    serve();
  });
}

bool LookupServer::rest(std::chrono::milliseconds time) const {
  pollfd stopped{stop_.get(), POLLIN, 0};
  (void)::poll(&stopped, 1, static_cast<int>(time.count()));
  return stopped.revents == 0;
}

void LookupServer::serve() {
  constexpr std::chrono::milliseconds kRest(100);
  bool warned = false;
  for (;;) {
    pollfd items[] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    if (::poll(items, 2, -1) < 0 && errno != EINTR) return;
    if (items[0].revents) return;
    if (!(items[1].revents & POLLIN)) continue;
    const UniqueFd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (caller) {
      warned = false;
      const bool is_served =
          is_of_our_user(caller.get()) || (serves_ == Serves::kRootToo && is_of_root(caller.get()));
      if (is_served) answer(caller.get());
      continue;
    }
    // These errors need no pause. After other errors the caller stays in the backlog, and poll()
    // would return at once, so this thread pauses below.
    if (errno == EINTR || errno == EAGAIN || errno == ECONNABORTED) continue;
    if (!std::exchange(warned, true)) {
      RCUDA_WARN(
          "this process cannot answer other processes (exports, checkpoints) for now: %s (check "
          "the limit on open files, ulimit -n)",
          std::strerror(errno));
    }
    if (!rest(kRest)) return;
  }
}

void LookupServer::answer(int caller) const {
  Request request{};
  if (!rcuda::recv_all(caller, rcuda::writable_bytes_of(request), in_a_second()).ok()) return;
  const std::optional<Item> item = find_(request.kind, request.key);
  Answer answer{};
  if (item) answer = {item->note, 1};
  const bool passes = item && item->descriptor >= 0;
  (void)rcuda::send_with_fds(caller, rcuda::bytes_of(answer),
                             {passes ? &item->descriptor : nullptr, passes}, in_a_second());
}

// ---- client ------------------------------------------------------------------------------------

namespace {

// `trusts`: whether the process at the other end of the socket is the right one.
Result<LookupResult> ask(const std::string& name, uint32_t kind, const LookupKey& key,
                         const std::function<bool(int socket)>& trusts, Deadline deadline) {
  sockaddr_un address;
  socklen_t length = 0;
  RCUDA_RETURN_IF_ERROR(address_of(name, &address, &length));
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return Status::from_errno(errno, "socket");
  const timeval second{1, 0};  // limits connect(), which waits while the backlog is full
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      !trusts(socket.get())) {
    return not_found();
  }
  Request request{key, kind, 0};
  Answer answer{};
  std::vector<UniqueFd> descriptors;
  Status asked = rcuda::send_all(socket.get(), rcuda::bytes_of(request), deadline);
  if (asked.ok()) {
    asked =
        rcuda::recv_with_fds(socket.get(), rcuda::writable_bytes_of(answer), descriptors, deadline);
  }
  if (asked.code() == Code::kSystem)
    return std::move(asked).with_context("looking up an export of another process");
  if (!asked.ok() || answer.found != 1) return not_found();
  LookupResult result{answer.note, {}};
  if (!descriptors.empty()) result.descriptor = std::move(descriptors.front());
  return result;
}

}  // namespace

Result<LookupResult> look_up(const std::string& name, uint32_t kind, const LookupKey& key) {
  return ask(name, kind, key, is_of_our_user, in_a_second());
}

Result<LookupResult> look_up_in(int pid, const std::string& name, uint32_t kind,
                                const LookupKey& key) {
  const auto trusts = [pid](int socket) {
    const rcuda::Result<ucred> peer = rcuda::peer_credentials(socket);
    return peer && peer->pid == pid;  // its user may have changed since listen()
  };
  return ask(name, kind, key, trusts, Deadline::max());
}

}  // namespace softgpu::driver
