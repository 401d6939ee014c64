#include "server/identity/tickets.h"

#include <algorithm>

#include <openssl/crypto.h>

#include "common/base/random_bytes.h"

namespace rcuda::server {

Result<wire::Ticket> Tickets::issue(const Identity& user, const wire::TicketQuery& connection,
                                    Clock::time_point now) {
  forget_expired(now);
  wire::Ticket ticket;
  RCUDA_RETURN_IF_ERROR(fill_randomly(ticket.secret));
  const auto is_theirs = [&](const Given& given) { return given.user.uid == user.uid; };
  if (std::count_if(tickets_.begin(), tickets_.end(), is_theirs) >=
      static_cast<ptrdiff_t>(kMostPerUser)) {
    tickets_.erase(std::find_if(tickets_.begin(), tickets_.end(), is_theirs));
  }
  tickets_.push_back({ticket, user, connection, now + lifetime_});
  Identity& given = tickets_.back().user;
  if (given.method != kContainer) given.method = "ticket";  // a container keeps its lesser rights
  return ticket;
}

std::optional<Identity> Tickets::redeem(const wire::Ticket& ticket,
                                        const wire::TicketQuery& connection,
                                        Clock::time_point now) {
  forget_expired(now);
  auto found = tickets_.end();
  for (auto given = tickets_.begin(); given != tickets_.end(); ++given) {
    if (CRYPTO_memcmp(given->ticket.secret, ticket.secret, sizeof ticket.secret) == 0) {
      found = given;
    }
  }
  if (found == tickets_.end()) return std::nullopt;
  const Given given = *found;
  tickets_.erase(found);
  if (given.connection.client != connection.client ||
      given.connection.server != connection.server) {
    return std::nullopt;
  }
  return given.user;
}

void Tickets::forget_expired(Clock::time_point now) {
  while (!tickets_.empty() && tickets_.front().expires <= now) tickets_.pop_front();
}

}  // namespace rcuda::server
