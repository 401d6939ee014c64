#include "server/door/doors.h"

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <tuple>
#include <utility>

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/base/socket_io.h"
#include "server/door/door.h"
#include "server/sandbox/start_process.h"

namespace rcuda::server {
namespace {

constexpr auto kFullFor = std::chrono::milliseconds(20);
constexpr auto kStartAgain = std::chrono::seconds(1);
constexpr auto kLongestStart = std::chrono::seconds(10);
constexpr auto kLongestEnd = std::chrono::seconds(1);
constexpr auto kInterval = std::chrono::seconds(10);  // between two warnings of one kind
// The doors that one network may start in a burst, and per second: each start blocks the daemon for
// a millisecond.
constexpr double kMostStarts = 64, kStartsInSecond = 32;
// After this time without a start, a network may start kMostStarts doors again.
constexpr auto kForgotten = std::chrono::seconds(2);

// Returns a number for the origin's network: the /24 of an IPv4 address, the /48 of an IPv6
// address. One attacker may have many origins in a network.
uint64_t network_of(const std::string& origin) {
  const std::string address = origin.substr(0, origin.find('/'));
  uint8_t bytes[16];
  const auto number = [&](size_t count) {
    uint64_t value = count;
    for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[i];
    return value;
  };
  if (::inet_pton(AF_INET, address.c_str(), bytes) == 1) return number(3);
  if (::inet_pton(AF_INET6, address.c_str(), bytes) == 1) return number(6);
  return std::hash<std::string_view>()(origin);
}

}  // namespace

Result<pid_t> spawn_door(const std::string& binary, int control) {
  std::vector<std::string> environment;
  if (const char* const libraries = ::getenv("LD_LIBRARY_PATH")) {
    environment.push_back(std::string("LD_LIBRARY_PATH=") + libraries);
  }
  return start_process(
      {binary, {"rcuda-door", kDoorOption}, environment, {{control, kDoorControl}}});
}

void Doors::end_all() {
  for (auto door = doors_.begin(); door != doors_.end();) door = end(door);
  const Clock::time_point until = Clock::now() + kLongestEnd;
  for (; !ended_.empty() && Clock::now() < until; reap()) ::poll(nullptr, 0, 1);
  for (const Ended& one : ended_) {
    ::kill(one.pid, SIGKILL);
    ::waitpid(one.pid, nullptr, 0);
  }
  ended_.clear();
}

Result<std::shared_ptr<Doors::Door>> Doors::start() {
  int control[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
    return Status::from_errno(errno, "making sockets for the process that speaks TLS");
  }
  auto door = std::make_shared<Door>();
  door->control.reset(control[0]);
  const UniqueFd its(control[1]);
  // From now on the door's sends fail, so it queues no descriptors here.
  if (::shutdown(door->control.get(), SHUT_RD) != 0)
    return Status::from_errno(errno,
                              "closing a direction of a socket to the process that speaks TLS");
  RCUDA_ASSIGN_OR_RETURN(door->pid, spawn_(its.get()));
  doors_.push_back(door);
  return door;
}

Result<std::shared_ptr<Doors::Door>> Doors::door_for(const std::string& origin) {
  const auto of = [&](const std::string& whose) {
    return std::ranges::find(doors_, whose, [](const auto& door) { return door->origin; });
  };
  auto found = of(origin);
  if (found == doors_.end()) {
    if (of("") == doors_.end() && Clock::now() < broken_until_) {
      return Status(Code::kTimeout,
                    "the server's process that speaks TLS could not start: try again, and "
                    "see the server's log");
    }
    const uint64_t network = network_of(origin);
    if (!may_start(network)) {
      return Status(Code::kTimeout,
                    "too many addresses of one network connect over TLS at once; try again");
    }
    if (of("") == doors_.end()) RCUDA_RETURN_IF_ERROR(start().status());
    RCUDA_RETURN_IF_ERROR(make_room(origin, network));
    found = of("");
    --starts_[network].left;
    (*found)->origin = origin;
    (*found)->network = network;
    (*found)->spared_until = Clock::now() + spared_;
  }
  std::rotate(found, std::next(found), doors_.end());
  return doors_.back();
}

bool Doors::may_start(uint64_t network) {
  const Clock::time_point now = Clock::now();
  auto& [left, since] = starts_.try_emplace(network, Starts{kMostStarts, now}).first->second;
  left += kStartsInSecond * std::chrono::duration<double>(now - since).count();
  left = std::min(left, kMostStarts);
  since = now;
  return left >= 1;
}

// If there are `most_` doors for unknown clients, ends a door (doors.h: Bounds). Returns kTimeout
// if none may be ended.
Status Doors::make_room(const std::string& origin, uint64_t network) {
  const auto is_bounded = [](const auto& door) { return !door->origin.empty() && !door->known; };
  if (static_cast<size_t>(std::ranges::count_if(doors_, is_bounded)) < most_) return {};
  std::map<uint64_t, size_t> sizes;  // the number of bounded doors of each network
  for (const auto& door : doors_) sizes[door->network] += is_bounded(door);
  const Clock::time_point now = Clock::now();
  const size_t own_size = sizes[network];
  auto chosen = doors_.end();
  std::tuple<bool, bool, size_t> highest{};
  for (auto one = doors_.begin(); one != doors_.end(); ++one) {
    if (!is_bounded(*one)) continue;
    const bool idle = one->use_count() == 1, spared = now < (*one)->spared_until;
    const size_t size = sizes[(*one)->network];
    if (!idle && size < (spared ? own_size + 2 : own_size)) continue;
    const std::tuple rank(idle, !spared, size);
    if (rank > highest) std::tie(chosen, highest) = std::tuple(one, rank);
  }
  if (chosen == doors_.end()) {
    return {Code::kTimeout, "too many addresses connect over TLS at once; try again"};
  }
  if (chosen->use_count() > 1 && now >= say_crowded_from_) {
    RCUDA_WARN(
        "unidentified clients of more than %zu addresses use TLS at once: the server closes the "
        "connections of %s to accept %s",
        most_, (*chosen)->origin.c_str(), origin.c_str());
    say_crowded_from_ = now + kInterval;
  }
  end(chosen);
  return {};
}

Status Doors::check() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::from_errno(errno, "making sockets for the process that speaks TLS");
  }
  const UniqueFd client(ends[0]);
  UniqueFd(ends[1]).reset();
  const Result<Passage> passage = open("the server itself", client.get());
  if (!passage.ok() && passage.status().code() != Code::kTimeout) return passage.status();
  DoorReport report;
  if (passage.ok() &&
      recv_all(passage->stream, writable_bytes_of(report), Clock::now() + kLongestStart).ok()) {
    return {};
  }
  return {Code::kUnavailable,
          "the server cannot speak TLS, which clients of other machines need: the process that "
          "speaks TLS does not start (see the lines before), or takes too long"};
}

Result<Doors::Passage> Doors::open(const std::string& origin, int client) {
  RCUDA_ASSIGN_OR_RETURN(auto door, door_for(origin));
  const Status busy(Code::kTimeout,
                    "the server's process that speaks TLS is busy, or has just ended; try again");
  if (Clock::now() < door->full_until) return busy;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::from_errno(errno, "making sockets for the process that speaks TLS");
  }
  UniqueFd stream(ends[0]);
  const UniqueFd its(ends[1]);
  (void)take_descriptors(stream.get(), false);
  const auto pass = [](int socket, int descriptor) {
    return try_send_with_fd(socket, bytes_of(DoorHandover()), descriptor);
  };
  RCUDA_RETURN_IF_ERROR(pass(stream.get(), client).status());
  const auto passed = pass(door->control.get(), its.get());
  if (passed.status().code() == Code::kUnavailable) {
    end(std::prev(doors_.end()));
    return busy;
  }
  RCUDA_RETURN_IF_ERROR(passed.status());
  if (*passed == 0) {
    door->full_until = Clock::now() + kFullFor;
    return busy;
  }
  door->idle_since.reset();
  return Passage{Socket(std::move(stream)), std::move(door)};
}

void Doors::keep(const Passage& passage) { passage.door->known = true; }

// Whether the last connection of the door has ended since the last refill().
bool Doors::has_lost_its_last(const std::shared_ptr<Door>& door) {
  return door.use_count() == 1 && !door->origin.empty() && !door->idle_since;
}

void Doors::refill(bool wanted) {
  const Clock::time_point now = Clock::now();
  std::vector<pollfd> items;
  add_descriptors(&items);
  if (!items.empty()) (void)::poll(items.data(), items.size(), 0);
  auto item = items.begin();
  for (auto one = doors_.begin(); one != doors_.end(); ++item) {
    Door& door = **one;
    if (has_lost_its_last(*one)) {
      door.idle_since = now;
      door.known = false;
    }
    const bool ended = item->revents != 0;
    if (ended) {
      RCUDA_LOG(now >= say_ended_from_ ? LogLevel::kWarn : LogLevel::kDebug,
                "the process that speaks TLS with %s has ended, and %ld connection(s) with it",
                door.origin.empty() ? "the next new client" : door.origin.c_str(),
                one->use_count() - 1);
      if (now >= say_ended_from_) say_ended_from_ = now + kInterval;
      if (door.origin.empty()) start_from_ = broken_until_ = now + kStartAgain;
    }
    one =
        ended || (door.idle_since && now - *door.idle_since >= kLinger) ? end(one) : std::next(one);
  }
  reap();
  std::erase_if(starts_, [&](const auto& one) { return now - one.second.since > kForgotten; });
  const bool has_spare =
      std::ranges::any_of(doors_, [](auto& door) { return door->origin.empty(); });
  if (!wanted || has_spare || now < start_from_) return;
  const auto started = start();
  if (started.ok()) return;
  RCUDA_ERROR("%s", started.status().message().c_str());
  start_from_ = now + kStartAgain;
}

void Doors::add_descriptors(std::vector<pollfd>* items) const {
  for (const auto& door : doors_) items->push_back({door->control.get(), 0, 0});
}

// A door that still has connections is killed immediately, which ends the connections. A door whose
// connections the daemon has ended gets time to send the daemon's last bytes to its clients.
Doors::List::iterator Doors::end(List::iterator door) {
  const Clock::time_point now = Clock::now();
  const bool sends = door->use_count() == 1;
  if ((*door)->pid > 0) ended_.push_back({(*door)->pid, sends ? now + kReadsRest : now});
  // Bounds the number of doors that are ending: kills the oldest.
  if (ended_.size() > most_) ended_.front().kill_at = now;
  (*door)->control.reset();
  const auto next = doors_.erase(door);
  reap();
  return next;
}

void Doors::reap() {
  const Clock::time_point now = Clock::now();
  std::erase_if(ended_, [&](const Ended& one) {
    if (now >= one.kill_at) ::kill(one.pid, SIGKILL);
    return ::waitpid(one.pid, nullptr, WNOHANG) != 0;
  });
}

Doors::Clock::time_point Doors::next_deadline() const {
  Clock::time_point next =
      ended_.empty() ? Clock::time_point::max() : Clock::now() + std::chrono::milliseconds(10);
  for (const auto& door : doors_) {
    if (door->idle_since) next = std::min(next, *door->idle_since + kLinger);
    if (has_lost_its_last(door)) next = Clock::now();
  }
  return next;
}

bool Doors::has(pid_t child) const {
  return std::ranges::find(ended_, child, &Ended::pid) != ended_.end() ||
         std::ranges::any_of(doors_, [&](const auto& door) { return door->pid == child; });
}

}  // namespace rcuda::server
