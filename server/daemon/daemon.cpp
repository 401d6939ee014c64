#include "server/daemon/daemon.h"

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/host_name.h"
#include "common/base/list_text.h"
#include "common/base/log.h"
#include "common/base/passed_descriptors.h"
#include "common/base/version.h"
#include "server/daemon/start_check.h"
#include "server/worker/device_set.h"

namespace rcuda::server {
namespace {

constexpr std::chrono::milliseconds kLongestWait = std::chrono::minutes(1);  // in one poll()
constexpr auto kSuccessorPause = std::chrono::milliseconds(20);
// The time until the next try when the closer does not read.
constexpr auto kPassAgain = std::chrono::milliseconds(5);

}  // namespace

Daemon::Daemon(Settings& settings, int signals, int ready, Start start, Doors::Spawn spawn)
    : settings_(settings),
      signals_(signals),
      ready_(ready),
      start_(std::move(start)),
      most_newcomers_(Connections::most_newcomers()),
      admission_(
          static_cast<size_t>(settings.max_sessions.get()),
          [this] { return pool_ ? pool_->offer().ordinals() : std::vector<uint32_t>(); },
          std::min(Admission::kMostWaiting, most_newcomers_)),
      tickets_(settings.handshake_timeout.get()),
      authenticator_(settings),
      doors_(spawn ? std::move(spawn)
                   : [&](int control) { return spawn_door(settings_.worker_binary, control); }),
      refusals_(audit_) {
  admission_.set_lost(
      [this] { return pool_ ? pool_->lost() : std::vector<Admission::LostSession>(); });
}

Status Daemon::run() {
  Status opened = open();
  // Without doors, the server would serve only clients of this machine.
  const bool needs_doors =
      opened.ok() && !start_.carried && !listener_.is_loopback && !authenticator_.allows_anybody();
  if (needs_doors) opened = doors_.check();
  if (!opened.ok()) {
    close();
    return opened;
  }
  pool_->adopt_orphans([this](pid_t child) { return doors_.has(child); });
  Result<bool> goes_on = true;
  while (goes_on.ok() && *goes_on) goes_on = take_turn(kLongestWait);
  const std::string why = control_->why_stopped();
  if (goes_on.ok())
    RCUDA_INFO("stopping, because %s: ending %zu session(s)", why.c_str(), pool_->sessions());
  close(why);
  return goes_on.status();
}

Status Daemon::listen() {
  Result<Listener> listener =
      listen_on(settings_.listen.get(), static_cast<uint16_t>(settings_.port.get()));
  if (!listener.ok()) return listen_failure(settings_, listener.status());
  listener_ = std::move(listener).value();
  RCUDA_RETURN_IF_ERROR(check_exposure(settings_, listener_));
  RCUDA_RETURN_IF_ERROR(check_named_files(settings_));
  pool_ =
      std::make_unique<WorkerPool>(settings_, Bases(host_name(), listener_.port), listener_.port);
  RCUDA_RETURN_IF_ERROR(pool_->prepare());
  // The closer starts after prepare(), so that it is in the daemon's cgroup, and before there are
  // threads and secrets.
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!take_descriptors(socket.get(), false)) RCUDA_RETURN_IF_ERROR(closer_.start());
  RCUDA_RETURN_IF_ERROR(authenticator_.open(!listener_.is_loopback));
  if (::geteuid() != 0) return {};
  return listen_as_root(&listener_, authenticator_.served().only_group());
}

Status Daemon::open() {
  if (!start_.carried) {
    RCUDA_RETURN_IF_ERROR(listen());
    RCUDA_RETURN_IF_ERROR(open_parts());
    return leases_->open();
  }
  return restore(*start_.carried);
}

// Opens the parts that use listener_ and pool_.
Status Daemon::open_parts() {
  RCUDA_ASSIGN_OR_RETURN(Rules rules, read_rules(settings_.config_file));
  admission_.set_rules(std::move(rules));
  RCUDA_RETURN_IF_ERROR(settings_.audit.at_origin(audit_.open(settings_.audit.get())));
  leases_.emplace(settings_, admission_, authenticator_, audit_, *pool_);
  pool_->record_in(&audit_);
  reload_.emplace(settings_, start_.load, admission_, authenticator_, audit_, *pool_,
                  service_manager_, [this] { return settings_applied(); });
  control_.emplace(settings_, authenticator_, admission_, audit_, *pool_, *reload_);
  connections_.emplace(
      ConnectionServices{settings_, listener_, closer_, authenticator_, doors_, tickets_,
                         admission_, *pool_, *leases_, *control_, monitor_, refusals_},
      most_newcomers_);
  return {};
}

void Daemon::close(const std::string& why) {
  service_manager_.stopping(why);
  // The closer also closes the listening local sockets: strangers may have queued descriptors in
  // them (closer.h).
  for (LocalListener* const local : {&listener_.local, &listener_.roots, &listener_.containers}) {
    closer_.close(::geteuid(), local->release());
  }
  listener_ = {};
  if (connections_) {
    connections_->refuse_all(Status(
        Code::kUnavailable, why +
                                ": try again when the server runs again (RCUDA_WAIT=60s waits for "
                                "it), or name another server"));
  }
  connections_.reset();
  closer_.end();
  control_.reset();
  reload_.reset();
  leases_.reset();
  if (pool_) pool_->shutdown(why);
  pool_.reset();
}

Result<bool> Daemon::take_turn(std::chrono::milliseconds longest_wait) {
  service_manager_.beat(Clock::now());
  if (successor_) try_successor();
  pool_->refill(connections_->waiting(), control_->draining());
  doors_.refill(authenticator_.speaks_tls());
  if (!announced_) {
    RCUDA_RETURN_IF_ERROR(pool_->start_failure());
    if (pool_->ever_ready() || settings_.pool.get() == 0) announce();
  }

  const auto [accounts, munge] = authenticator_.descriptors();
  const bool may_accept = announced_ && Clock::now() >= accept_from_;
  const bool accepts = may_accept && !pauses(Entrance::kNetwork);
  const bool closer_is_full = closer_.is_full();
  const bool accepts_local = may_accept && !pauses(Entrance::kLocal) && !closer_is_full;
  // poll() ignores negative descriptors.
  std::vector<pollfd> items = {{signals_, POLLIN, 0},
                               {accounts, POLLIN, 0},
                               {munge, POLLIN, 0},
                               {monitor_.descriptor(), POLLIN, 0},
                               {accepts ? listener_.tcp.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.local.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.roots.get() : -1, POLLIN, 0},
                               {accepts_local ? listener_.containers.get() : -1, POLLIN, 0}};
  const size_t first_connection = items.size();
  connections_->add_descriptors(&items);
  const size_t first_worker = items.size();
  pool_->add_descriptors(&items);
  doors_.add_descriptors(&items);
  const auto wait = std::min(longest_wait, time_to_next_deadline());
  if (::poll(items.data(), items.size(), static_cast<int>(wait.count())) < 0 && errno != EINTR) {
    return Status::from_errno(errno, "waiting for clients and workers (poll)");
  }
  if (items[0].revents && !take_signal()) return false;
  if (items[1].revents || items[2].revents) authenticator_.acknowledge();
  if (items[3].revents) monitor_.acknowledge();
  pool_->handle(std::span(items).subspan(first_worker));
  pool_->advance_parking(monitor_);
  leases_->expire();
  connections_->handle(items.data() + first_connection);
  // advance() comes before accept_some(), so that a new connection does not replace a connection
  // that has just introduced itself.
  connections_->advance();
  make_room();
  if (items[4].revents) accept_some(listener_.tcp.get(), Entrance::kNetwork);
  if (items[5].revents) accept_some(listener_.local.get(), Entrance::kLocal);
  if (items[6].revents) accept_some(listener_.roots.get(), Entrance::kLocal);
  if (items[7].revents) accept_some(listener_.containers.get(), Entrance::kContainers);
  connections_->report_queue();
  return !control_->may_stop();
}

// Ends sessions of disconnected clients if waiting clients need their places in the budgets. The
// end of LostClient::kSpared is not a deadline of the loop, because the loop wakes each second
// anyway to report places to waiting clients.
void Daemon::make_room() {
  for (const auto& [worker, user] : admission_.in_the_way()) {
    pool_->end_lost(worker, "a program of user " + user);
  }
}

bool Daemon::take_signal() {
  signalfd_siginfo signal{};
  if (::read(signals_, &signal, sizeof signal) != sizeof signal) return true;
  return control_->take_signal(static_cast<int>(signal.ssi_signo));
}

void Daemon::accept_some(int listening, Entrance entrance) {
  const Status accepted = connections_->accept_some(listening, entrance);
  if (accepted.ok()) return;
  // Most likely the process has no descriptor left. Connections stay in the backlog until
  // descriptors are free again.
  RCUDA_WARN("%s", accepted.message().c_str());
  accept_from_ = Clock::now() + std::chrono::seconds(1);
}

void Daemon::announce() {
  announced_ = true;
  pool_->serve();
  const WorkerReady& offer = pool_->offer();
  const std::vector<uint32_t> ordinals = offer.ordinals();
  std::string names;
  for (const wire::ServerStatus::Device& device : offer.devices) {
    if (names.find(device.name) == std::string::npos) {
      append_item(&names, device.name);
    }
  }
  RCUDA_INFO("serving %s on %s and @rcuda-%u: device%s %s (%s; %s), by %s",
             authenticator_.served_text().c_str(), listener_.address.c_str(), listener_.port,
             ordinals.size() == 1 ? "" : "s",
             ordinals.empty() ? "(not known yet)" : list_of(ordinals).c_str(), names.c_str(),
             offer.driver.c_str(), version_of("rcuda-server").c_str());
  if (authenticator_.allows_anybody()) {
    RCUDA_WARN(
        "--insecure: any program that can connect to %s can run code on this machine as %s, and "
        "nothing is encrypted",
        listener_.address.c_str(), ::geteuid() == 0 ? "nobody" : "this user");
  }
  service_manager_.ready("serving on " + listener_.address);
  if (ready_ >= 0) {
    const std::string line = std::to_string(listener_.port) + "\n";
    [[maybe_unused]] ssize_t written = ::write(ready_, line.data(), line.size());
  }
}

std::chrono::milliseconds Daemon::time_to_next_deadline() const {
  Clock::time_point next = std::min({pool_->next_deadline(), connections_->next_deadline(),
                                     doors_.next_deadline(), service_manager_.next_beat()});
  if (accept_from_ > Clock::now()) next = std::min(next, accept_from_);
  if (successor_) next = std::min(next, Clock::now() + kSuccessorPause);
  if (closer_.has_more()) next = std::min(next, Clock::now() + kPassAgain);
  if (const auto until = control_->drain_until()) next = std::min(next, *until);
  if (const std::optional<Leases::Time> end = admission_.leases().next_end()) {
    next = std::min(next, Clock::now() + (*end - std::chrono::system_clock::now()));
  }
  if (next == Clock::time_point::max()) return kLongestWait;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(1), kLongestWait);
}

}  // namespace rcuda::server
