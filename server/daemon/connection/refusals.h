// Refusals: logs and counts the clients that are refused.
//
// Strangers must not be able to fill the disk, so at most kMostLogged of their refusals are logged
// in each interval.
//
// Threads: the daemon's only thread. Nothing blocks, nothing fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "server/daemon/admission/audit.h"
#include "server/identity/identity.h"

namespace rcuda::server {

class Refusals {
 public:
  explicit Refusals(Audit& audit) : audit_(audit) {}

  // `served`: the client is a user that the server serves.
  void record(const std::string& name, const std::optional<Identity>& identity, bool served,
              const Status& why) {
    ++counts_[static_cast<size_t>(why.code())];
    if (!served && !logs_stranger()) return;
    RCUDA_WARN("%s is refused: %s", name.c_str(), why.message().c_str());
    audit_.refused(identity ? identity->from : name, identity, why.message());
  }

  // Whether to log one more line about a stranger.
  bool logs_stranger() {
    const auto now = std::chrono::steady_clock::now();
    if (now >= since_ + kInterval) {
      if (strangers_ > kMostLogged) {
        const std::string more = std::to_string(strangers_ - kMostLogged) +
                                 " more connections were refused before they had identified a user";
        RCUDA_WARN("%s", more.c_str());
        audit_.refused("many", {}, more);
      }
      since_ = now;
      strangers_ = 0;
    }
    return ++strangers_ <= kMostLogged;
  }

  // The number of refusals since the start, by Code.
  const std::vector<uint64_t>& counts() const { return counts_; }

 private:
  static constexpr size_t kMostLogged = 100;  // strangers, in an interval
  static constexpr auto kInterval = std::chrono::seconds(10);

  Audit& audit_;
  std::vector<uint64_t> counts_ = std::vector<uint64_t>(static_cast<size_t>(Code::kDenied) + 1);
  size_t strangers_ = 0;  // since the interval began
  std::chrono::steady_clock::time_point since_{};
};

}  // namespace rcuda::server
