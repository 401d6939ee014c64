#include "server/worker/end_watch.h"

#include <algorithm>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/start_thread.h"

namespace rcuda::server {
namespace {

constexpr std::chrono::nanoseconds kShortestLook = std::chrono::milliseconds(10);
constexpr std::chrono::nanoseconds kLongestLook = std::chrono::seconds(1);

void end_process(const Status& why) {
  RCUDA_WARN(
      "the session is over (%s), but a call into the driver does not return: the worker exits",
      why.message().c_str());
  ::_exit(2);
}

}  // namespace

EndWatch::EndWatch(std::function<Status()> over, std::chrono::nanoseconds patience,
                   std::function<void(const Status& why)> expire)
    : over_(std::move(over)),
      patience_(patience),
      expire_(expire ? std::move(expire) : end_process) {}

EndWatch::~EndWatch() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status EndWatch::start() {
  return start_thread(&thread_, [this] { run(); });
}

void EndWatch::run() {
  pthread_setname_np(pthread_self(), "rcuda-end-watch");
  const auto look = std::clamp(patience_ / 4, kShortestLook, kLongestLook);
  MutexLock lock(mutex_);
  const auto ends_within = [&](std::chrono::nanoseconds span) RCUDA_REQUIRES(mutex_, lock) {
    return changed_.wait_for(lock, span, [this]() RCUDA_REQUIRES(mutex_) { return ended_; });
  };
  Status why;
  do {
    if (ends_within(look)) return;
    why = over_();
  } while (why.ok());
  if (!ends_within(patience_)) expire_(why);
}

}  // namespace rcuda::server
