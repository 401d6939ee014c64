// Tickets: with a ticket a TCP client of the server's own machine proves its user
// (docs/security.md).
//
// A ticket is issued to a user, whom the local socket tells, for one TCP connection. It is good for
// one use within its lifetime, on that connection. A user has at most kMostPerUser; the next one
// replaces the user's oldest.
// Threads: the daemon's one thread. Nothing blocks. Errors: as the functions say.
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
  // The user it was issued to; nothing if it is unknown, used, expired or for another connection.
  // The ticket is used up in any case. Takes the same time whatever the secret is.
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
