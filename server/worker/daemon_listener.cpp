#include "server/worker/daemon_listener.h"

#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::server {
namespace {

// Whether the daemon still has its end of the pipe, and so still runs. The end of the socket alone
// does not show that the daemon has ended: a daemon that stops this worker also shuts the socket
// down, and the StopRequest is missing if the socket had no room for it.
bool is_read(int reports) {
  pollfd item{reports, 0, 0};
  return ::poll(&item, 1, 0) == 0;
}

}  // namespace

DaemonListener::DaemonListener(int socket, int reports, std::function<void(ToWorker)> caller,
                               std::function<void(std::string why)> stop)
    : socket_(socket),
      reports_(reports),
      caller_(std::move(caller)),
      stop_(std::move(stop)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

DaemonListener::~DaemonListener() {
  {
    MutexLock lock(mutex_);
    ends_ = true;
  }
  if (!thread_.joinable()) return;
  wake();
  thread_.join();
}

void DaemonListener::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

Status DaemonListener::start() {
  if (!event_) return {Code::kOutOfMemory, "no file descriptor is left (ulimit -n) for an eventfd"};
  return start_thread(&thread_, [this] { run(); });
}

void DaemonListener::watch(UniqueFd client) {
  {
    MutexLock lock(mutex_);
    client_ = std::move(client);
    ++watches_;
    client_left_ = false;
  }
  wake();
}

Result<FurtherSocket> DaemonListener::wait_for_stream(int index, Clock::time_point deadline) {
  MutexLock lock(mutex_);
  const auto key = static_cast<uint32_t>(index);
  const auto over = [&]() RCUDA_REQUIRES(mutex_) {
    return streams_.contains(key) || stopped_ || client_left_;
  };
  if (!changed_.wait_until(lock, deadline, over)) {
    return Status(Code::kTimeout, "the client did not open its further connections in time");
  }
  auto found = streams_.find(key);
  if (found == streams_.end()) {
    return Status(Code::kUnavailable,
                  stopped_ ? "the server stops" : "the client has closed its connection");
  }
  FurtherSocket stream = std::move(found->second);
  streams_.erase(found);
  return stream;
}

void DaemonListener::on_replacement(std::function<void(int)> function) {
  MutexLock lock(mutex_);
  replacement_ = std::move(function);
}

void DaemonListener::run() {
  pthread_setname_np(pthread_self(), "rcuda-daemon");
  for (;;) {
    pollfd items[3] = {{socket_, POLLIN, 0}, {event_.get(), POLLIN, 0}, {-1, POLLRDHUP, 0}};
    uint64_t watches;
    {
      MutexLock lock(mutex_);
      if (ends_) return;
      watches = watches_;
      if (!client_left_) items[2].fd = client_.get();
    }
    if (::poll(items, std::size(items), -1) < 0) continue;
    if (items[1].revents != 0) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
      continue;  // watch() may have set another connection
    }
    if (items[2].revents != 0) {
      MutexLock lock(mutex_);
      // watch() may have set another connection since poll(), with the same descriptor.
      if (watches != watches_) continue;
      client_left_ = true;
      changed_.notify_all();
    }
    if (items[0].revents != 0 && !take_message()) return;
  }
}

bool DaemonListener::take_message() {
  Result<ToWorker> message = receive_from_daemon(socket_);
  auto* const received = message.ok() ? &*message : nullptr;
  if (auto* const further = std::get_if<FurtherSocket>(received)) {
    MutexLock lock(mutex_);
    // The daemon passes on one socket for each index and attempt. The client has given up the
    // sockets of earlier attempts, so the new socket replaces them.
    const wire::Attach& attach = further->introduction;
    if (attach.attempt != 0 && replacement_) replacement_(static_cast<int>(attach.index));
    streams_.insert_or_assign(attach.index, std::move(*further));
    changed_.notify_all();
    return true;
  }
  if (std::get_if<PeerCall>(received) || std::get_if<ExportCall>(received) ||
      std::get_if<RanksLost>(received) || std::get_if<ParkStep>(received)) {
    caller_(std::move(*received));
    return true;
  }
  // A descriptor was lost, and with it one connection. The session goes on.
  if (message.status().code() == Code::kSystem) {
    RCUDA_WARN("the worker did not receive a connection for its session: %s",
               message.status().message().c_str());
    return true;
  }
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  const auto* const stop = std::get_if<StopRequest>(received);
  if (stop && !stop->why.empty()) {
    stop_(stop->why);
  } else {
    stop_(message.ok() || is_read(reports_)
              ? "the server stops"
              : "the server's daemon has ended: see the server's log");
  }
  return false;
}

}  // namespace rcuda::server
