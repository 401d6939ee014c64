#include "server/daemon/carried/carried_state.h"

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/file_io.h"
#include "common/base/fnv1a.h"
#include "common/base/memory_file.h"
#include "common/messages/message_codec.h"
#include "server/protocol/limits_codec.h"
#include "server/protocol/work_page.h"
#include "server/protocol/worker_messages.h"
#include "server/quota/ledger.h"

namespace rcuda::server {
namespace {

constexpr uint32_t kMany = 1'000'000;
constexpr uint32_t kMostBytes = 1u << 20;  // of an encoded message in a string field
constexpr uint32_t kMostLeaseBytes = 16u << 20;

}  // namespace

template <typename Visitor>
void fields(Visitor& visit, CarriedSetting& m) {
  visit.string("key", m.key);
  visit.string("text", m.text, kMostBytes);
  visit.string("origin", m.origin);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedSocket& m) {
  visit.number("descriptor", m.descriptor);
  visit.string("path", m.path);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedListener& m) {
  visit.object("tcp", m.tcp);
  visit.object("local", m.local);
  visit.object("roots", m.roots);
  visit.object("containers", m.containers);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedBudget& m) {
  visit.string("key", m.key);
  visit.number("ledger", m.ledger);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedPermit::Place& m) {
  visit.string("budget", m.budget);
  visit.optional("slot", m.slot);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedPermit& m) {
  visit.number("devices", m.devices);
  visit.list("places", m.places, kMany);
  visit.number("ledger", m.ledger);
  visit.list("allowances", m.allowances, kMany);
  visit.object("limits", m.limits);
}

template <typename Visitor>
void fields(Visitor& visit, Identity& m) {
  visit.optional("uid", m.uid);
  visit.number("gid", m.gid);
  visit.string("user", m.user);
  visit.list("groups", m.groups, kMany);
  visit.string("method", m.method);
  visit.string("from", m.from);
  visit.list("account_groups", m.account_groups, kMany);
  visit.string("lease", m.lease);
  visit.string("job", m.job);
  visit.flag("lease_oversubscribes", m.lease_oversubscribes);
  std::string roles = m.roles ? m.roles->text() : "";
  visit.string("roles", roles);
  if constexpr (Visitor::kReads) {
    const Result<Roles> read = Roles::parse(roles);
    if (read.ok()) m.roles = *read;
    visit.check(roles.empty() || read.ok());
  }
}

template <typename Visitor>
void fields(Visitor& visit, CarriedWorker& m) {
  visit.number("pid", m.pid);
  visit.number("since", m.since);
  visit.flag("has_ended", m.has_ended);
  visit.number("process", m.process);
  visit.number("control", m.control);
  visit.number("reports", m.reports);
  visit.number("log", m.log);
  visit.flag("reads_reports", m.reads_reports);
  visit.string("report", m.report, kMostBytes);
  visit.string("line", m.line, kMostBytes);
  visit.number("base", m.base);
  visit.flag("has_devices", m.has_devices);
  visit.list("devices", m.devices, wire::kMaxDevices);
  visit.number("sm_percent", m.sm_percent);
  visit.flag("has_cgroup", m.has_cgroup);
  visit.optional("kill_at", m.kill_at);
  visit.string("start", m.start, kMostBytes);
  visit.list("attempts", m.attempts, kMany);
  visit.object("identity", m.identity);
  visit.optional("permit", m.permit);
  visit.number("work", m.work);
  visit.string("totals", m.totals, kMostBytes);
  visit.string("ended_by", m.ended_by);
  visit.flag("lease_ended", m.lease_ended);
  visit.number("park", m.park);
  visit.number("park_way", m.park_way);
  visit.number("park_kept", m.park_kept);
  visit.number("park_keeps", m.park_keeps);
  visit.number("park_since", m.park_since);
  visit.number("parked_at", m.parked_at);
  visit.optional("park_by", m.park_by);
  visit.number("park_room_for", m.park_room_for);
  visit.flag("is_preempted", m.is_preempted);
  visit.list("park_bytes", m.park_bytes, wire::kMaxDevices);
  visit.number("park_group", m.park_group);
  visit.flag("has_answered", m.has_answered);
  visit.flag("owes_answer", m.owes_answer);
  visit.list("shares_with", m.shares_with, kMany);
  visit.flag("shares_outside", m.shares_outside);
  visit.list("moves", m.moves, kMany);
  visit.number("unanswered_moves", m.unanswered_moves);
  visit.check(m.moves.size() % 2 == 0);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedCgroups& m) {
  visit.string("path", m.path);
  visit.flag("in_daemon_cgroup", m.in_daemon_cgroup);
  visit.list("controllers", m.controllers, kMany);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedTicket& m) {
  visit.message("ticket", m.ticket);
  visit.object("user", m.user);
  visit.message("connection", m.connection);
  visit.number("expires", m.expires);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedServiceManager& m) {
  visit.number("socket", m.socket);
  visit.number("pause", m.pause);
}

template <typename Visitor>
void fields(Visitor& visit, CarriedState& m) {
  visit.list("settings", m.settings, kMany);
  visit.flag("for_others", m.for_others);
  visit.object("service_manager", m.service_manager);
  visit.object("listener", m.listener);
  visit.number("closer", m.closer);
  visit.object("cgroups", m.cgroups);
  visit.list("budgets", m.budgets, kMany);
  visit.list("workers", m.workers, kMany);
  visit.list("not_of_workers", m.not_of_workers, kMany);
  visit.number("doublings", m.doublings);
  visit.string("offer", m.offer, kMostBytes);
  visit.message("totals", m.totals);
  visit.list("tickets", m.tickets, kMany);
  visit.string("leases", m.leases, kMostLeaseBytes);
  visit.message("lease_totals", m.lease_totals);
  visit.flag("draining", m.draining);
  visit.list("drained", m.drained, kMany);
  visit.number("signal", m.signal);
  visit.optional("drain_until", m.drain_until);
}

}  // namespace rcuda::server

template struct rcuda::wire::Codec<rcuda::server::CarriedState>;

namespace rcuda::server {

uint64_t carried_layout() {
  return fnv1a(wire::Codec<CarriedState>::layout() + worker_messages_layout() +
               std::string(Ledger::kLayout) + std::to_string(Ledger::kRows) + "," +
               std::to_string(Ledger::kSlots) + WorkPage::layout());
}

Result<UniqueFd> write_carried(const CarriedState& state) {
  UniqueFd file(::memfd_create("rcuda-carried", MFD_ALLOW_SEALING));
  std::vector<std::byte> bytes = wire::encode(state);
  const uint64_t layout = carried_layout();
  const auto hash = std::as_bytes(std::span(&layout, 1));
  bytes.insert(bytes.begin(), hash.begin(), hash.end());
  if (file && !write_all(file.get(), bytes)) {
    return Status::from_errno(errno, "writing the server's state for its next build");
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  if (!file || ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return Status::from_errno(errno, "making a memory file for the server's state");
  }
  return file;
}

Result<CarriedState> read_carried(int file) {
  const off_t size = ::lseek(file, 0, SEEK_END);
  if (size < 0) return Status::from_errno(errno, "reading the size of the earlier server's state");
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  if (::lseek(file, 0, SEEK_SET) != 0 || !read_all(file, bytes)) {
    return Status::from_errno(errno, "reading the earlier server's state");
  }
  uint64_t layout = 0;
  if (bytes.size() >= sizeof layout) std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout != carried_layout()) {
    return Status(
        Code::kUnsupported,
        "the running server's build stores its state in another layout than this build; restart "
        "rcuda-server, which ends its sessions");
  }
  return wire::decode<CarriedState>({bytes.begin() + sizeof layout, bytes.end()});
}

void set_close_on_exec(const CarriedState& state, bool closes) {
  const auto set = [&](int descriptor) {
    if (descriptor >= 0) ::fcntl(descriptor, F_SETFD, closes ? FD_CLOEXEC : 0);
  };
  const CarriedListener& listener = state.listener;
  for (const CarriedSocket* socket :
       {&listener.tcp, &listener.local, &listener.roots, &listener.containers}) {
    set(socket->descriptor);
  }
  set(state.closer);
  set(state.service_manager.socket);
  for (const CarriedBudget& budget : state.budgets) set(budget.ledger);
  for (const CarriedWorker& worker : state.workers) {
    for (const int descriptor :
         {worker.process, worker.control, worker.reports, worker.log, worker.work}) {
      set(descriptor);
    }
    if (worker.permit) set(worker.permit->ledger);
  }
}

}  // namespace rcuda::server
