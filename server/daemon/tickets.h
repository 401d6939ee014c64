// Tickets: what a TCP client of the server's own machine proves its user with (docs/security.md).
//
// A ticket is given to a user, whom the local socket tells, for one TCP connection. It is good for
// one use within its lifetime, by whoever presents it on that connection. Each user has at most
// kMostPerUser at a time; the next one takes the place of the user's oldest. Not thread-safe: the
// daemon's one thread uses it. Nothing blocks.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/wire/handshake.h"

namespace rcuda::server {

class Tickets {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostPerUser = 1024;

  explicit Tickets(Clock::duration lifetime) : lifetime_(lifetime) {}

  // Fails when the kernel gives no random numbers.
  Result<wire::Ticket> issue(uid_t user, const wire::TicketQuery& connection,
                             Clock::time_point now);
  // Whom it was given to; nothing when it is unknown, used, expired or for another connection. It
  // is used in any case. Takes the same time whatever the secret is.
  std::optional<uid_t> redeem(const wire::Ticket& ticket, const wire::TicketQuery& connection,
                              Clock::time_point now);
  size_t size() const { return tickets_.size(); }

 private:
  struct Given {
    wire::Ticket ticket;
    uid_t user;
    wire::TicketQuery connection;
    Clock::time_point expires;
  };

  void forget_expired(Clock::time_point now);

  const Clock::duration lifetime_;
  std::list<Given> tickets_;  // the oldest first
};

}  // namespace rcuda::server
