// The takeover by another build of the server (successor.h).
#include <list>
#include <utility>

#include "common/base/executable.h"
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "server/daemon/daemon.h"

namespace rcuda::server {
namespace {

// Before a takeover, new connections wait in the backlog, for kLongestPause at most. When the pause
// has lasted for kIntroduces, the daemon refuses connections that have not introduced themselves.
// After kLongestPause without a takeover, the daemon accepts connections for kIntroduces, and then
// pauses again. The local sockets pause kTakesTicket later than the network (Daemon::pauses()).
constexpr auto kLongestPause = std::chrono::seconds(2);
constexpr auto kIntroduces = std::chrono::seconds(1);
constexpr std::chrono::steady_clock::duration kTakesTicket = std::chrono::milliseconds(300);

}  // namespace

std::string Daemon::settings_applied() {
  const Status opened = listener_.roots.set_group(authenticator_.served().only_group());
  if (!opened.ok()) RCUDA_ERROR("%s", opened.message().c_str());
  return choose_successor();
}

std::string Daemon::choose_successor() {
  successor_.reset();
  const std::string& binary = executable_path();
  const std::optional<FileId> file = find_successor(binary);
  if (!start_.argv || !file) return "";
  const Status checked = check_successor(binary, start_.argv, carry());
  if (!checked.ok()) return stay(checked);
  successor_ = {*file, Clock::now()};
  RCUDA_INFO("%s is another build: it takes over when no client waits for a session",
             binary.c_str());
  return "another build takes over when no client waits for a session";
}

std::string Daemon::stay(const Status& why) {
  successor_.reset();
  const std::string text = "the server continues with its running build: " + why.context();
  RCUDA_ERROR("%s", text.c_str());
  return text;
}

// Does not pause while clients wait in the queue, because they may wait for a long time. The local
// sockets pause later: a client that has connected over TCP may need a local connection for its
// ticket.
bool Daemon::pauses(Entrance entrance) const {
  const auto after = entrance == Entrance::kNetwork ? Clock::duration(0) : kTakesTicket;
  return successor_ && Clock::now() >= successor_->from + after && admission_.waiting() == 0;
}

// Executes the successor, unless a connection or another task of the daemon is in progress.
void Daemon::try_successor() {
  const Clock::time_point now = Clock::now();
  if (now >= successor_->from + kLongestPause) successor_->from = now + kIntroduces;
  const bool is_late = now >= successor_->from + kIntroduces;
  if (is_late && connections_->has_newcomers()) {
    connections_->refuse_newcomers(
        Status(Code::kUnavailable, "another build takes over this server: connect again"));
  }
  if (!connections_->empty() || closer_.has_more() || has_stuck_thread() || pool_->has_helpers()) {
    return;
  }
  if (file_id(executable_path()) != successor_->file) {  // upgraded again meanwhile
    (void)choose_successor();
    return;
  }
  pool_->renew_idle();  // idle workers run this build, and must not serve new sessions
  doors_.end_all();
  const CarriedState state = carry();
  const Status checked = check_successor(executable_path(), start_.argv, state);
  if (!checked.ok()) return (void)stay(checked);
  RCUDA_INFO("another build takes over: %zu session(s) go on", pool_->sessions());
  (void)stay(execute_successor(executable_path(), start_.argv, state));
}

CarriedState Daemon::carry() const {
  CarriedState state;
  for (const config::SettingBase* setting : settings_.registry.settings()) {
    if (!is_reloaded(setting->key())) {
      state.settings.push_back({setting->key(), setting->text(), setting->origin()});
    }
  }
  state.for_others = !listener_.is_loopback;
  state.service_manager = service_manager_.carry();
  state.listener = server::carry(listener_);
  state.closer = closer_.descriptor();
  for (const Tickets::Given& given : tickets_.given()) {
    const auto expires = std::chrono::nanoseconds(given.expires.time_since_epoch());
    state.tickets.push_back({given.ticket, given.user, given.connection, expires.count()});
  }
  admission_.carry(&state);
  pool_->carry(admission_, &state);
  control_->carry(&state);
  return state;
}

Status Daemon::restore(const CarriedState& carried) {
  service_manager_.restore(carried.service_manager);
  listener_ = server::restore(carried.listener);
  closer_.restore(UniqueFd(carried.closer));
  std::list<Tickets::Given> tickets;
  for (const CarriedTicket& ticket : carried.tickets) {
    const Clock::time_point expires{std::chrono::nanoseconds(ticket.expires)};
    tickets.push_back({ticket.ticket, ticket.user, ticket.connection, expires});
  }
  tickets_.restore(std::move(tickets));
  pool_ =
      std::make_unique<WorkerPool>(settings_, Bases(host_name(), listener_.port), listener_.port);
  RCUDA_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Admission::Permit>> permits,
                         admission_.restore(carried));
  RCUDA_RETURN_IF_ERROR(pool_->restore(carried, std::move(permits)));
  RCUDA_RETURN_IF_ERROR(authenticator_.open(carried.for_others));
  RCUDA_RETURN_IF_ERROR(open_parts());
  control_->restore(carried);
  announced_ = true;
  pool_->serve();
  RCUDA_INFO("this build has taken over at %s with %zu session(s)", listener_.address.c_str(),
             pool_->sessions());
  return {};
}

}  // namespace rcuda::server
