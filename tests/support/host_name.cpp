#include "tests/support/host_name.h"

#include <cassert>
#include <cstring>
#include <mutex>
#include <utility>

#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include "tests/support/tcp_sockets.h"

extern "C" int __real_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** list);

namespace rcuda::test {
namespace {

constexpr char kFirst[] = "127.0.0.2";
constexpr char kSecond[] = "127.0.0.3";

struct Answers {
  std::mutex mutex;
  std::vector<HostName::Addresses> left;  // guarded by mutex
};

Answers& answers() {
  static Answers instance;
  return instance;
}

HostName::Addresses next_answer() {
  std::lock_guard lock(answers().mutex);
  std::vector<HostName::Addresses>& left = answers().left;
  HostName::Addresses next = left.empty() ? HostName::Addresses() : left.front();
  if (left.size() > 1) left.erase(left.begin());
  return next;
}

UniqueFd listen_at(const char* address, uint16_t* port) {
  UniqueFd socket = bind_tcp(address, port);
  EXPECT_EQ(::listen(socket.get(), 16), 0);
  return socket;
}

}  // namespace

HostName::HostName(std::vector<Addresses> left) {
  std::lock_guard lock(answers().mutex);
  assert(answers().left.empty());
  answers().left = std::move(left);
}

HostName::~HostName() {
  std::lock_guard lock(answers().mutex);
  answers().left.clear();
}

UniqueFd bind_tcp(const std::string& address, uint16_t* port) {
  Result<UniqueFd> socket = bound_tcp(address, port);
  EXPECT_TRUE(socket.ok()) << socket.status().message();
  return socket.ok() ? std::move(socket).value() : UniqueFd();
}

MovingHost::MovingHost()
    : name_({{kFirst}, {kSecond}}),
      first_(listen_at(kFirst, &port_)),
      second_(listen_at(kSecond, &port_)) {}

MovingHost::Caller MovingHost::accept() const {
  pollfd entries[] = {{first_.get(), POLLIN, 0}, {second_.get(), POLLIN, 0}};
  EXPECT_GT(::poll(entries, std::size(entries), -1), 0);
  const bool to_first = entries[0].revents != 0;
  const int listener = to_first ? first_.get() : second_.get();
  return {UniqueFd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)), to_first};
}

}  // namespace rcuda::test

// Joins the lists of several addresses. freeaddrinfo() can free the result, because it frees each
// entry by itself.
extern "C" int __wrap_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** list) {
  using rcuda::test::HostName;
  if (node == nullptr || std::strcmp(node, HostName::kName) != 0) {
    return __real_getaddrinfo(node, service, hints, list);
  }
  addrinfo** end = list;
  *end = nullptr;
  for (const std::string& address : rcuda::test::next_answer()) {
    const int error = __real_getaddrinfo(address.c_str(), service, hints, end);
    if (error != 0) return error;
    while (*end != nullptr) end = &(*end)->ai_next;
  }
  return *list != nullptr ? 0 : EAI_NONAME;
}
