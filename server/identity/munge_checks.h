// MungeChecks: checks the MUNGE credentials of clients on threads of its own, because munged may
// take long to answer and the daemon's main thread must not wait.
//
// Threads: one thread calls. Blocking: nothing, not even the destructor; a check that hangs keeps
// its thread until it returns. Errors: those of identity::munge, kDenied for a credential of
// another connection, kUnavailable if too many checks wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <sys/types.h>

#include "common/base/async_lookup.h"
#include "common/base/status.h"
#include "common/identity/munge.h"
#include "common/tls/connection.h"

namespace rcuda::server {

class MungeChecks {
 public:
  static constexpr size_t kMostAtOnce = 4;
  static constexpr size_t kMostWaiting = 512;

  struct Outcome {
    uid_t uid = 0;
    std::string answer;  // the server's credential, which only this user can decode
  };

  explicit MungeChecks(identity::munge::Settings settings)
      : settings_(std::move(settings)), checks_(kMostAtOnce) {}

  // Begins a check and returns its number. `nonce`: the binding of the client's
  // connection (wire::munge_payload()).
  Result<uint64_t> begin(std::string credential, const tls::Key& nonce);
  // Returns the outcome of a check once, and nothing while munged has not answered.
  std::optional<Result<Outcome>> take(uint64_t number) { return checks_.take(number); }
  // Drops the check of a connection that has closed.
  void forget(uint64_t number) { checks_.forget(number); }

  int descriptor() const { return checks_.descriptor(); }
  // Makes descriptor() unreadable until the next outcome.
  void acknowledge() { checks_.acknowledge(); }

 private:
  const identity::munge::Settings settings_;
  AsyncLookup<uint64_t, Result<Outcome>> checks_;  // by the number of the check
  uint64_t last_ = 0;
};

}  // namespace rcuda::server
