// SessionTime: ends a session that has lasted too long or was idle for too long (SessionLimits).
// Warns the client before the end.
//
// The warning comes a tenth of the limit before the end, but no earlier than a minute before it.
// Idle means that no command has come and no work was in progress. poll() looks for work only when
// the time is nearly over, because that takes a query of the driver. If work has ended since the
// previous poll(), the session counts as used now, so an idle session may get more time than its
// limit, but never less.
//
// Threads: last_end() on any thread, because it reads only constants; all other functions on one
// thread. Blocking: none. Errors: none. Times are nanoseconds of the monotonic clock.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "server/quota/limits.h"

namespace rcuda::server {

class SessionTime {
 public:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  SessionTime(const SessionLimits& limits, uint64_t now);

  bool limits() const { return session_ != 0 || idle_ != 0; }
  void used(uint64_t now);  // a command has come

  struct Notice {
    bool ends = false;  // the session ends now; false: this is a warning
    std::string text;   // for the user
  };
  // Returns the notice that is due. `works`: whether work is in progress.
  std::optional<Notice> poll(uint64_t now, const std::function<bool()>& works);
  // When poll() is to be called next; a use of the session may make it later.
  uint64_t due() const;
  // When the session is over if it stays idle.
  uint64_t idle_end() const { return idle_ == 0 ? kNever : last_use_ + idle_; }
  // When the session must be over even if it is in use.
  uint64_t last_end() const { return session_ == 0 ? kNever : begin_ + session_; }

 private:
  const uint64_t session_, idle_;  // 0: no limit
  const uint64_t begin_;
  uint64_t last_use_;
  bool worked_ = false;  // work was in progress when poll() last called `works`
  bool session_warned_ = false, idle_warned_ = false;
};

}  // namespace rcuda::server
