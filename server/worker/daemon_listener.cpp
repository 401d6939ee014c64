#include "server/worker/daemon_listener.h"

#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::server {

DaemonListener::DaemonListener(int socket, std::function<void(WorkerMessage)> peer,
                               std::function<void(std::string why, bool only_this)> stop)
    : socket_(socket),
      peer_(std::move(peer)),
      stop_(std::move(stop)),
      end_event_(::eventfd(0, EFD_CLOEXEC)) {}

DaemonListener::~DaemonListener() {
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(end_event_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

Status DaemonListener::start() {
  return start_thread(&thread_, [this] { run(); });
}

Result<UniqueFd> DaemonListener::wait_for_stream(int index, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto key = static_cast<uint32_t>(index);
  if (!changed_.wait_until(lock, deadline, [&] { return streams_.contains(key) || stopped_; })) {
    return Status(Code::kTimeout, "the client did not open its further connections");
  }
  auto found = streams_.find(key);
  if (found == streams_.end()) return Status(Code::kUnavailable, "the server stops");
  UniqueFd stream = std::move(found->second);
  streams_.erase(found);
  return stream;
}

void DaemonListener::run() {
  pthread_setname_np(pthread_self(), "rcuda-daemon");
  for (;;) {
    pollfd items[2] = {{socket_, POLLIN, 0}, {end_event_.get(), POLLIN, 0}};
    if (::poll(items, 2, -1) < 0) continue;
    if (items[1].revents) return;
    Result<WorkerMessage> message = receive_worker_message(socket_);
    if (message.ok() && message->type == WorkerMessageType::kAttach) {
      std::lock_guard lock(mutex_);
      // The daemon passes on one for each index, and few in all.
      streams_.try_emplace(message->index, std::move(message->descriptor));
      changed_.notify_all();
      continue;
    }
    if (message.ok() && message->type == WorkerMessageType::kPeer) {
      peer_(std::move(message).value());
      continue;
    }
    // A descriptor was lost, and with it one connection. The session goes on.
    if (message.status().code() == Code::kSystem) {
      RCUDA_WARN("a connection is dropped: %s", message.status().message().c_str());
      continue;
    }
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    if (message.ok() && message->type == WorkerMessageType::kStop && !message->body.empty()) {
      const auto* text = reinterpret_cast<const char*>(message->body.data());
      stop_(std::string(text, message->body.size()), true);
    } else {
      stop_(message.ok() ? "the server stops" : "the server is gone", false);
    }
    return;
  }
}

}  // namespace rcuda::server
