// The pool's reports about its sessions.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "common/base/monotonic.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {

namespace {

// Clients of a server with --insecure may claim any number of user names. So the number of entries
// is bounded: all further pairs of user and medium share the entry "others".
wire::ServerStatus::UserTotals& totals_of(wire::ServerStatus::Totals* totals,
                                          const std::string& user, const std::string& medium) {
  std::vector<wire::ServerStatus::UserTotals>& users = totals->users;
  const auto found = std::find_if(users.begin(), users.end(), [&](const auto& user_totals) {
    return user_totals.user == user && user_totals.medium == medium;
  });
  if (found != users.end()) return *found;
  if (users.size() == wire::kMaxUserTotals - 1) {
    return users.emplace_back(wire::ServerStatus::UserTotals{"others", "others"});
  }
  if (users.size() == wire::kMaxUserTotals) return users.back();
  return users.emplace_back(wire::ServerStatus::UserTotals{user, medium});
}

void add_session(wire::ServerStatus::Totals* totals, const std::string& user,
                 const std::string& medium, const wire::Work& work) {
  wire::ServerStatus::UserTotals& user_totals = totals_of(totals, user, medium);
  ++user_totals.sessions;
  user_totals.work += work;
}

}  // namespace

void WorkerPool::add_to_lease(const Worker& worker, wire::LeaseInfo* lease) {
  const auto age = std::chrono::floor<std::chrono::milliseconds>(Clock::now() - worker.since);
  ++lease->begun;
  lease->device_ms += static_cast<uint64_t>(age.count()) * worker.session.devices.size();
  if (worker.work) lease->work += worker.work->read();
}

bool WorkerPool::shows(const Worker& worker, const Viewer& to) {
  return worker.is(State::kBusy) && (to.sees_all || same_user(worker.identity, to.user));
}

std::optional<uint64_t> WorkerPool::lost_seconds(const Worker& worker) {
  const uint64_t since = worker.is(State::kBusy) && worker.work ? worker.work->lost_since() : 0;
  if (since == 0) return std::nullopt;
  const uint64_t now = monotonic_ns();
  return (now - std::min(since, now)) / 1'000'000'000;
}

wire::ServerStatus::Session WorkerPool::session_of(const Worker& worker) {
  wire::ServerStatus::Session session = worker.session;
  session.user = worker.identity.user;
  session.priority = priority_of(worker);
  session.seconds = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - worker.since).count());
  if (!worker.work) return session;
  session.work = worker.work->read();
  session.losses = worker.work->losses();
  session.lost_seconds = lost_seconds(worker);
  session.park = to_string(worker.park.state);
  session.park_refused = worker.park.refused;
  if (is_away(worker.park.state)) {
    session.park_way = to_string(worker.park.way);
    for (const auto& [device, bytes] : worker.park.bytes) session.parked_bytes += bytes;
    session.parked_seconds = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - worker.park.parked_at)
            .count());
  }
  if (worker.work->fell_back() && !worker.fallback.empty()) session.medium = worker.fallback;
  return session;
}

AuditedSession WorkerPool::audited(const Worker& worker) {
  AuditedSession session{worker.identity, session_of(worker), {}, {}};
  session.session.user = worker.session.user;  // as the client claims
  if (worker.permit) {
    session.allowances = worker.permit->allowances();
    session.limits = worker.permit->limits();
  }
  return session;
}

void WorkerPool::count_end(const Worker& worker) {
  if (worker.work) {
    const wire::ServerStatus::Session session = session_of(worker);
    add_session(&totals_, session.user, session.medium, session.work);
  }
  const std::string& lease = worker.identity.lease;
  if (!lease.empty() && !worker.lease_ended) add_to_lease(worker, &lease_totals_[lease]);
}

void WorkerPool::report(wire::LeaseInfo* lease) const {
  if (const auto ended = lease_totals_.find(lease->id); ended != lease_totals_.end()) {
    lease->begun += ended->second.begun;
    lease->device_ms += ended->second.device_ms;
    lease->work += ended->second.work;
  }
  for (const Worker& worker : workers_) {
    if (worker.is(State::kBusy) && worker.identity.lease == lease->id) add_to_lease(worker, lease);
  }
}

void WorkerPool::report(wire::ServerStatus* status, const Viewer& to) const {
  status->driver = offer_.driver;
  status->nccl = offer_.nccl;
  status->devices = offer_.devices;
  if (to.sees_all) status->totals = totals_;
  for (const Worker& worker : workers_) {
    if (worker.is(State::kIdle)) ++status->idle_workers;
    if (!shows(worker, to)) continue;
    const wire::ServerStatus::Session session = session_of(worker);
    status->sessions.push_back(session);
    if (!worker.work || !to.sees_all) continue;
    add_session(&status->totals, session.user, session.medium, session.work);
  }
}

std::optional<Admission::Room> WorkerPool::report(wire::GpuReport::Gpu* gpu,
                                                  const std::map<uint32_t, uint64_t>& memory_of,
                                                  const Viewer& to) const {
  std::optional<Admission::Room> least;
  for (const Worker& worker : workers_) {
    const std::vector<uint32_t>& devices = worker.session.devices;
    if (!shows(worker, to) ||
        std::find(devices.begin(), devices.end(), gpu->ordinal) == devices.end()) {
      continue;
    }
    wire::GpuReport::Process process{worker.session.host, worker.session.client_pid};
    const bool is_there = !is_away(worker.park.state);
    if (worker.work && is_there) process.used_bytes = worker.work->held(gpu->ordinal);
    const auto told = memory_of.find(static_cast<uint32_t>(worker.pid));
    if (told != memory_of.end() && told->second != GpuSample::Gpu::kNotAvailable) {
      process.used_bytes = told->second;
    }
    if (worker.permit) {
      const auto booked = worker.permit->device_use(gpu->ordinal);
      if (booked) process.used_bytes = *booked;
      const auto room = worker.permit->device_room(gpu->ordinal);
      if (room && room->limit < gpu->total_bytes) process.quota_bytes = room->limit;
      if (room && same_user(worker.identity, to.user) && (!least || room->free < least->free)) {
        least = room;
      }
    }
    gpu->processes.push_back(std::move(process));
  }
  return least;
}

}  // namespace rcuda::server
