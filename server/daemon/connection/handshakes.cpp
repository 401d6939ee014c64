// The part of the daemon that shakes hands with clients of other machines (TLS).
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/daemon/daemon.h"

namespace rcuda::server {
namespace {

// How long a connection is spared after it has begun TLS, and after it has finished the handshake.
// A flood from the client's own address replaces all newcomers in some 100 ms.
constexpr auto kHandshakeSpared = std::chrono::milliseconds(200);
constexpr auto kIdentifiedSpared = std::chrono::seconds(1);

}  // namespace

// Whether a connection may begin TLS. If so, its handshake is due.
bool Daemon::begin_tls(Connection& connection) {
  connection.shakes = true;
  if (gate_.tls()) return true;
  connection.shakes = false;
  refuse(connection, Status(Code::kUnsupported,
                            "this server has no certificate, so it cannot speak TLS: start it "
                            "with --listen and an address, or set RCUDA_SERVER_CERTIFICATE"));
  return false;
}

bool Daemon::any_handshake_due() const {
  for (const Connection& connection : connections_) {
    if (connection.shakes) return true;
  }
  return false;
}

// Continues some of the handshakes that are due. The others wait for the next round, which begins
// at once and first handles everything else that clients have sent.
void Daemon::shake_hands() {
  std::vector<std::list<Connection>::iterator> due;
  std::map<std::string, size_t> unfinished;
  for (auto one = connections_.begin(); one != connections_.end(); ++one) {
    if (one->shakes) due.push_back(one);
    if (one->owes_identity()) ++unfinished[one->origin];
  }
  if (due.empty()) return;
  std::vector<HandshakeDebts::Step> steps;
  for (const auto& one : due) {
    steps.push_back({&one->origin, unfinished[one->origin], one->tls != nullptr});
  }
  const Clock::time_point begin = Clock::now();
  for (const size_t next : handshakes_.order(steps, begin)) {
    due[next]->shakes = false;
    if (!shake_hands(*due[next])) leave(due[next]);
    if (Clock::now() - begin >= HandshakeDebts::kTimePerRound) break;
  }
}

bool Daemon::shake_hands(Connection& connection) {
  if (!connection.tls) {
    auto tls = gate_.tls()->accept(connection.socket.fd());
    if (!tls.ok()) {
      refuse(connection, tls.status());
      return false;
    }
    connection.spared_until = Clock::now() + kHandshakeSpared;
    connection.tls = tls->get();
    connection.socket = Socket(connection.socket.release(), std::move(tls).value());
  }
  const auto progress = connection.tls->shake_hands();
  if (!progress.ok()) {
    // The client has already received TLS's own alert.
    refuse(connection, progress.status());
    return false;
  }
  // A handshake fits the socket's buffer; a client that takes nothing is dropped.
  if (*progress == tls::Connection::Progress::kWantsWrite) return false;
  connection.shaken = *progress == tls::Connection::Progress::kDone;
  if (connection.shaken) connection.spared_until = Clock::now() + kIdentifiedSpared;
  return true;
}

// Removes a connection. Returns the next one.
std::list<Daemon::Connection>::iterator Daemon::leave(std::list<Connection>::iterator connection) {
  if (connection->owes_identity()) handshakes_.failed(connection->origin, Clock::now());
  if (connection->proof) gate_.forget(*connection->proof);
  return connections_.erase(connection);
}

}  // namespace rcuda::server
