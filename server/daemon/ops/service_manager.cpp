#include "server/daemon/ops/service_manager.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/parse_number.h"

namespace rcuda::server {
namespace {

// Removes a variable from the environment and returns its value.
std::string take_variable(const char* name) {
  const char* const value = ::getenv(name);
  std::string taken = value ? value : "";
  ::unsetenv(name);
  return taken;
}

// 0 if the text is not a number.
uint64_t number_of(const std::string& text) {
  uint64_t number = 0;
  return parse_number(text, &number) ? number : 0;
}

UniqueFd connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() < 2 || path.size() >= sizeof address.sun_path) return {};
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path.front() == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool connected =
      socket && ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0;
  return connected ? std::move(socket) : UniqueFd();
}

}  // namespace

ServiceManager::ServiceManager() : socket_(connect_to(take_variable("NOTIFY_SOCKET"))) {
  const uint64_t microseconds = number_of(take_variable("WATCHDOG_USEC"));
  const std::string pid = take_variable("WATCHDOG_PID");
  if (microseconds == 0 || !socket_ || (!pid.empty() && pid != std::to_string(::getpid()))) return;
  pause_ = std::chrono::microseconds(microseconds / 2);
  next_beat_ = Clock::now();
}

void ServiceManager::restore(const CarriedServiceManager& carried) {
  is_ready_ = true;
  socket_.reset(carried.socket);
  pause_ = std::chrono::nanoseconds(carried.pause);
  if (carried.pause != 0) next_beat_ = Clock::now();
}

void ServiceManager::reloading() const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t us =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1'000;
  if (is_ready_) (void)send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(us));
}

void ServiceManager::beat(Clock::time_point now) {
  if (now >= send_again_) send_ready("READY=1");
  if (now < next_beat_) return;
  (void)send("WATCHDOG=1");
  next_beat_ = now + pause_;
}

// Returns false if the socket has no room now.
bool ServiceManager::send(const std::string& text) const {
  return !socket_ || ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) >= 0 ||
         (errno != EAGAIN && errno != ENOBUFS);
}

}  // namespace rcuda::server
