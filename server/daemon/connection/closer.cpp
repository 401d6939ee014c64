#include "server/daemon/connection/closer.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/socket_io.h"
#include "server/sandbox/nobody.h"
#include "server/sandbox/start_process.h"

namespace rcuda::server {
namespace {

using Clock = std::chrono::steady_clock;

// A message with this number in place of a user reports that the daemon has closed its descriptor
// of one passed connection. The reports come in the order in which the connections were passed. No
// user has this number.
constexpr uint32_t kClosed = ~uint32_t{0};
constexpr size_t kMostWaiting = 1024;  // connections that wait in the daemon
constexpr size_t kMostHeld = 4096;     // connections in the helper; fewer if RLIMIT_NOFILE is low
constexpr size_t kBatch = 64;
constexpr int kLookMs = 100;

// Whether the helper does not read for now, or memory is short: the caller sends again later.
bool is_temporary(const Status& sent) {
  return sent.code() == Code::kTimeout || sent.code() == Code::kSystem;
}

// The helper process. It has one thread.
class Helper {
 public:
  explicit Helper(int daemon) : daemon_(daemon) {}

  [[noreturn]] void run() {
    for (;;) {
      pollfd item{held() + open_.size() < most_held_ ? daemon_ : -1, POLLIN, 0};
      const bool idle = children_.empty() && held() == 0;
      (void)::poll(&item, 1, idle ? -1 : kLookMs);
      if (item.revents != 0) receive();
      collect();
      for (auto& [user, connections] : held_) end(user, connections);
      std::erase_if(held_, [](const auto& entry) { return entry.second.empty(); });
    }
  }

 private:
  struct Child {
    pid_t pid;
    uid_t user;
    Clock::time_point since;
  };

  size_t held() const {
    size_t all = 0;
    for (const auto& [user, connections] : held_) all += connections.size();
    return all;
  }

  void receive() {
    for (size_t i = 0; i < kBatch; ++i) {
      uint32_t user = 0;
      std::vector<UniqueFd> descriptors;
      const Result<size_t> got =
          recv_packet_with_fds(daemon_, writable_bytes_of(user), descriptors, Clock::now());
      if (got.status().code() == Code::kTimeout) return;
      if (got.status().code() == Code::kUnavailable) ::_exit(0);  // the daemon has ended
      if (user == kClosed && !open_.empty()) {
        held_[open_.front().first].push_back(open_.front().second);
        open_.pop_front();
      }
      for (UniqueFd& one : descriptors) {
        if (one) open_.emplace_back(user, one.release());
      }
    }
  }

  // Closes a batch of connections in a child. The child exits only after this process has closed
  // its own descriptors of them, so the child's exit closes the last descriptors.
  void end(uid_t user, std::vector<int>& connections) {
    const auto own = static_cast<size_t>(std::count_if(
        children_.begin(), children_.end(), [&](const Child& child) { return child.user == user; }));
    int begin[2];
    if (connections.empty() || own >= Closer::kMostChildren || ::pipe(begin) != 0) return;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(begin[1]);
      ::close(daemon_);
      for (const auto& [other, theirs] : held_) {
        if (other == user) continue;
        for (const int connection : theirs) ::close(connection);
      }
      for (const auto& [other, connection] : open_) ::close(connection);
      char byte;
      (void)!::read(begin[0], &byte, 1);
      ::_exit(0);
    }
    ::close(begin[0]);
    if (pid > 0) {
      for (const int connection : connections) ::close(connection);
      connections.clear();
      children_.push_back({pid, user, Clock::now()});
    }
    ::close(begin[1]);
  }

  void collect() {
    const Clock::time_point now = Clock::now();
    std::erase_if(children_, [&](const Child& child) {
      if (::waitpid(child.pid, nullptr, WNOHANG) != 0) return true;
      if (now - child.since > Closer::kPatience) ::kill(child.pid, SIGKILL);
      return false;
    });
  }

  static size_t most_held() {
    rlimit files{};
    return ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::min<size_t>(kMostHeld, files.rlim_cur / 2)
                                                   : kMostHeld / 16;
  }

  const int daemon_;
  const size_t most_held_ = most_held();
  // Connections that the daemon has passed, and that are still open in the daemon.
  std::deque<std::pair<uid_t, int>> open_;
  std::map<uid_t, std::vector<int>> held_;
  std::vector<Child> children_;
};

[[noreturn]] void be_helper(int daemon) {
  ::prctl(PR_SET_NAME, "rcuda-closer");
  ::setpgid(0, 0);  // Ctrl-C at the terminal is for the daemon
  const int control = ::dup2(daemon, STDERR_FILENO + 1);
  close_descriptors_from(STDERR_FILENO + 2);
  (void)become_nobody();
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  Helper(control).run();
}

}  // namespace

Status Closer::start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return Status::from_errno(errno, "making sockets for the process that closes connections");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return Status::from_errno(errno, "starting the process that closes connections");
  if (pid == 0) {
    // The helper is an orphan, so that it is not among the daemon's children.
    if (::fork() == 0) be_helper(theirs.get());
    ::_exit(0);
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  socket_ = std::move(ours);
  return {};
}

bool Closer::pass(uid_t user, UniqueFd* connection) {
  if (!say_closed()) return false;
  const int descriptor = connection->get();
  const Status sent =
      send_with_fds(socket_.get(), bytes_of(uint32_t{user}), {&descriptor, 1}, Clock::now());
  if (is_temporary(sent)) return false;
  if (!sent.ok()) {
    RCUDA_ERROR(
        "the process that closes local connections has ended (%s): restart rcuda-server; until "
        "then, a local user could block the server",
        sent.message().c_str());
    socket_.reset();
  }
  connection->reset();
  ++unsaid_;
  (void)say_closed();
  return true;
}

bool Closer::say_closed() {
  for (; unsaid_ > 0 && socket_; --unsaid_) {
    if (is_temporary(send_with_fds(socket_.get(), bytes_of(kClosed), {}, Clock::now()))) {
      return false;
    }
  }
  return true;
}

void Closer::close(uid_t user, UniqueFd connection) {
  if (!connection || !socket_) return;
  if (!waiting_.empty() || !pass(user, &connection)) {
    waiting_.emplace_back(user, std::move(connection));
  }
}

void Closer::end() {
  (void)is_full();
  for (auto& [user, connection] : waiting_) (void)connection.release();
  waiting_.clear();
  socket_.reset();
}

bool Closer::is_full() {
  if (!socket_) waiting_.clear();
  while (!waiting_.empty() && pass(waiting_.front().first, &waiting_.front().second)) {
    waiting_.pop_front();
  }
  (void)say_closed();
  return waiting_.size() >= kMostWaiting;
}

}  // namespace rcuda::server
