// HandshakeDebts: which TLS handshakes the daemon continues next.
//
// A handshake costs a stranger nothing, but takes half a millisecond of the daemon's only thread.
// So the daemon spends a bounded time on handshakes in each round of its loop. The debt of an
// origin (listener.h) is the number of its handshakes that are unfinished or have failed a short
// while ago. Origins with less debt come first. A handshake that ends with an identity leaves no
// debt, so the clients of one origin do not delay one another.
//
// Threads: the daemon's only thread. Nothing blocks, nothing fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace rcuda::server {

class HandshakeDebts {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kTimePerRound{5};
  // A larger limit does not pay: sorting more handshakes takes longer than their first steps, if
  // they go no further.
  static constexpr size_t kMostPerRound = 256;
  static constexpr size_t kForgivenPerSecond = 10;
  // Above this number, the smallest debts are forgotten.
  static constexpr size_t kMostOrigins = 4096;

  // A handshake of this origin ended without an identity.
  void failed(const std::string& origin, Clock::time_point now);
  size_t failures_of(const std::string& origin, Clock::time_point now) const;

  struct Step {
    const std::string* origin = nullptr;
    size_t unfinished = 0;  // handshakes of this origin
    bool begun = false;     // the server has answered its first message
  };
  // Returns the steps to take in this round, in order, until its time is used up. Each is an index
  // into `due`, which is in the order of arrival.
  std::vector<size_t> order(const std::vector<Step>& due, Clock::time_point now) const;

 private:
  struct Failures {
    size_t count = 0;
    Clock::time_point last{};
  };
  static size_t left(const Failures& failures, Clock::time_point now);
  void forget(Clock::time_point now);

  std::map<std::string, Failures> failures_;
};

}  // namespace rcuda::server
