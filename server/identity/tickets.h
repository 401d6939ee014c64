// Tickets: a TCP client on the server's own machine proves its user with a ticket
// (docs/security.md).
//
// A ticket is issued for one TCP connection, to the user that the local socket reports. It can be
// redeemed once, within its lifetime, on that connection. A user has at most kMostPerUser tickets;
// the next one replaces the user's oldest.
//
// Threads: the daemon's main thread. No function blocks. Errors: as the functions say.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>

#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "server/identity/identity.h"

namespace rcuda::server {

class Tickets {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostPerUser = 1024;

  explicit Tickets(Clock::duration lifetime) : lifetime_(lifetime) {}

  // Fails if the kernel returns no random numbers.
  Result<wire::Ticket> issue(const Identity& user, const wire::TicketQuery& connection,
                             Clock::time_point now);
  // Returns the user to whom the ticket was issued, or nothing if the ticket is unknown, used,
  // expired or for another connection. Each call uses up the ticket, also if it is for another
  // connection. The time of the call does not depend on the secret.
  std::optional<Identity> redeem(const wire::Ticket& ticket, const wire::TicketQuery& connection,
                                 Clock::time_point now);
  size_t size() const { return tickets_.size(); }

  struct Given {
    wire::Ticket ticket;
    Identity user;
    wire::TicketQuery connection;
    Clock::time_point expires;
  };
  // For a successor (server/daemon/ops/successor.h): the tickets that are not used yet, the oldest
  // first.
  const std::list<Given>& given() const { return tickets_; }
  void restore(std::list<Given> tickets) { tickets_ = std::move(tickets); }

 private:
  void forget_expired(Clock::time_point now);

  const Clock::duration lifetime_;
  std::list<Given> tickets_;  // the oldest first
};

}  // namespace rcuda::server
