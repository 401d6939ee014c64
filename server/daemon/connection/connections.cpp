#include "server/daemon/connection/connections.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <sys/resource.h>

#include "common/base/log.h"

namespace rcuda::server {
namespace {

using State = ConnectionState;

// kMostNewcomers bounds the connections that have not introduced themselves. kMostAcceptedAtOnce
// bounds the connections that are accepted in one round. It is small, so that the daemon reads from
// a new connection before later connections can replace it.
constexpr rlim_t kMostNewcomers = 2048;
constexpr size_t kMostAcceptedAtOnce = 256;
constexpr auto kCrowdedInterval = std::chrono::seconds(10);

}  // namespace

size_t Connections::most_newcomers() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostNewcomers;
  // An eighth of the limit on descriptors. Each newcomer may have two descriptors, and as many
  // clients again may wait for sessions. At least half of the descriptors are left for sessions and
  // workers.
  return std::clamp<rlim_t>(limit.rlim_cur / 8, 1, kMostNewcomers);
}

Status Connections::accept_some(int listening, Entrance entrance) {
  Crowd crowd = newcomers();
  const size_t most_at_once = std::clamp<size_t>(most_ / 2, 1, kMostAcceptedAtOnce);
  for (size_t i = 0; i < most_at_once; ++i) {
    RCUDA_ASSIGN_OR_RETURN(Accepted accepted,
                           accept_from(listening, entrance != Entrance::kNetwork));
    if (!accepted.socket) break;
    Connection& client = connections_.emplace_back(services_, std::move(accepted), entrance);
    if (client.state() == State::kHeld && may_look_up(client)) client.finish_proof();
    if (client.state() == State::kEnded) {
      connections_.pop_back();
      continue;
    }
    if (crowd.total >= most_) drop_newcomer(&crowd);
    ++crowd.origins[client.origin()];
    ++crowd.total;
  }
  return {};
}

void Connections::add_descriptors(std::vector<pollfd>* items) const {
  for (const Connection& client : connections_) items->push_back({client.fd(), client.events(), 0});
}

void Connections::handle(const pollfd* events) {
  const Clock::time_point now = Clock::now();
  std::set<std::string> proved;  // origins with a proof in this round
  Clock::duration spent{};
  for (Position client = connections_.begin(); client != connections_.end(); ++events) {
    const short happened = events->revents;
    const bool stranger = (happened != 0 || client->looks(now)) && client->is_stranger();
    const bool is_postponed =
        stranger && (spent > kTimeForStrangers ||
                     (client->owes_proof() && !proved.insert(client->origin()).second));
    if (is_postponed) {
      ++client;
      continue;
    }
    const Clock::time_point begin = stranger ? Clock::now() : now;
    client->handle(happened, now);
    if (stranger) spent += Clock::now() - begin;
    if (client->state() == State::kHeld && may_look_up(*client)) client->finish_proof();
    client = next(client);
  }
}

Connections::Position Connections::next(Position connection) {
  if (connection->state() != State::kEnded) return std::next(connection);
  return connections_.erase(connection);
}

void Connections::advance() {
  for (Position client = connections_.begin(); client != connections_.end();) {
    if (waits(client->state())) client->advance();
    client = next(client);
  }
}

void Connections::report_queue() {
  const Clock::time_point now = Clock::now();
  for (Position client = connections_.begin(); client != connections_.end();) {
    client->report_queue(now);
    client = next(client);
  }
}

std::vector<WorkerPool::Waiting> Connections::waiting() const {
  std::vector<WorkerPool::Waiting> waiting;
  for (const Connection& client : connections_) {
    if (client.state() == State::kAdmitted) waiting.push_back(client.waiting());
  }
  return waiting;
}

Connections::Clock::time_point Connections::next_deadline() const {
  Clock::time_point next = Clock::time_point::max();
  for (const Connection& client : connections_) next = std::min(next, client.next_deadline());
  return next;
}

// Whether the account of this client in a container may be looked up now. Clients in containers get
// half of the look-ups: each look-up takes a thread, which clients of other kinds need too.
bool Connections::may_look_up(const Connection& client) const {
  std::set<AccountKey> others;
  for (const Connection& other : connections_) {
    const bool looks_up = other.state() == State::kProving && other.is_in_container();
    if (looks_up && other.account() != client.account()) others.insert(other.account());
  }
  return others.size() < Accounts::kMostAtOnce / 2;
}

Connections::Crowd Connections::newcomers() const {
  Crowd crowd;
  for (const Connection& client : connections_) {
    if (!is_newcomer(client.state())) continue;
    ++crowd.origins[client.origin()];
    ++crowd.total;
  }
  return crowd;
}

void Connections::refuse_all(const Status& why) {
  for (Connection& client : connections_) {
    if (client.state() != ConnectionState::kEnded) client.refuse(why);
  }
}

void Connections::refuse_newcomers(const Status& why) {
  for (Position client = connections_.begin(); client != connections_.end();) {
    if (is_newcomer(client->state())) client->drop(why);
    client = next(client);
  }
}

// Makes room for the latest connection, which `crowd` does not count yet. Drops the oldest newcomer
// of the origin that has the most newcomers, if possible a newcomer that is not spared.
void Connections::drop_newcomer(Crowd* crowd) {
  const auto most =
      std::max_element(crowd->origins.begin(), crowd->origins.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  const Position latest = std::prev(connections_.end());
  const Clock::time_point now = Clock::now();
  const auto find = [&](Clock::time_point spared_from) {
    return std::find_if(connections_.begin(), latest, [&](const Connection& one) {
      return is_newcomer(one.state()) && one.origin() == most->first &&
             one.spared_until() <= spared_from;
    });
  };
  Position oldest = find(now);
  if (oldest == latest) oldest = find(Clock::time_point::max());
  if (now >= say_crowded_from_) {
    RCUDA_WARN(
        "too many connections have sent no request yet (%zu from %s): the server closes the oldest "
        "to accept new ones",
        most->second, oldest->origin().c_str());
    say_crowded_from_ = now + kCrowdedInterval;
  }
  oldest->drop(
      Status(Code::kUnavailable,
             "too many connections to the server have sent no request yet, and this connection "
             "is the oldest of them: try again, and see the server's log for the addresses of the "
             "others"));
  next(oldest);
  --most->second;
  --crowd->total;
}

}  // namespace rcuda::server
