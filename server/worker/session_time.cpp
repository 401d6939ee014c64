#include "server/worker/session_time.h"

#include <algorithm>

#include "common/base/units.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;  // in nanoseconds

uint64_t limit_of(std::chrono::nanoseconds limit) {
  return static_cast<uint64_t>(std::max<int64_t>(limit.count(), 0));  // at most kLongestTime
}

// How long before the end the client is warned.
uint64_t lead(uint64_t limit) { return std::min(limit / 10, 60 * kSecond); }

std::string text(uint64_t ns) {
  return time_text(std::chrono::nanoseconds(static_cast<int64_t>(ns)));
}

}  // namespace

SessionTime::SessionTime(const SessionLimits& limits, uint64_t now)
    : session_(limit_of(limits.session_time)),
      idle_(limit_of(limits.idle_time)),
      begin_(now),
      last_use_(now) {}

void SessionTime::used(uint64_t now) {
  last_use_ = now;
  worked_ = false;
  idle_warned_ = false;
}

uint64_t SessionTime::due() const {
  uint64_t at = kNever;
  if (session_ != 0) at = begin_ + session_ - (session_warned_ ? 0 : lead(session_));
  if (idle_ != 0) at = std::min(at, last_use_ + idle_ - (idle_warned_ ? 0 : lead(idle_)));
  return at;
}

std::optional<SessionTime::Notice> SessionTime::poll(uint64_t now,
                                                     const std::function<bool()>& works) {
  if (session_ != 0 && now >= begin_ + session_) {
    return Notice{true, "the server ends this session: it has lasted " + text(session_) +
                            ", the limit of the server's administrator (session_time)"};
  }
  if (session_ != 0 && !session_warned_ && now >= begin_ + session_ - lead(session_)) {
    session_warned_ = true;
    return Notice{false, "this session ends in " + text(lead(session_)) +
                             ": the server limits sessions to " + text(session_) +
                             " (session_time)"};
  }
  if (idle_ == 0 || now < last_use_ + idle_ - lead(idle_)) return std::nullopt;
  const bool work = works();
  if (work || worked_) {
    used(now);
    worked_ = work;
    return std::nullopt;
  }
  if (now >= last_use_ + idle_) {
    return Notice{true, "the server ends this session: it has been idle for " + text(idle_) +
                            ", the limit of the server's administrator (idle_time)"};
  }
  if (idle_warned_) return std::nullopt;
  idle_warned_ = true;
  return Notice{false, "this session ends in " + text(lead(idle_)) +
                           " if it stays idle: the server allows " + text(idle_) +
                           " without work (idle_time)"};
}

}  // namespace rcuda::server
