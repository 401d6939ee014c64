// The state of the pool for a successor (successor.h). The caller ends the idle workers first
// (renew_idle()), because they run the old build.
#include <algorithm>
#include <utility>

#include <unistd.h>

#include "common/base/log.h"
#include "server/daemon/pool/worker_pool.h"

namespace rcuda::server {
namespace {

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

int64_t ns_of(WorkerPool::Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

WorkerPool::Clock::time_point time_of(int64_t ns) {
  return WorkerPool::Clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

void WorkerPool::carry(const Admission& admission, CarriedState* state) const {
  for (const Worker& worker : workers_) state->workers.push_back(carry(worker, admission));
  if (cgroups_) state->cgroups = cgroups_->carry();
  state->not_of_workers.assign(not_of_workers_.begin(), not_of_workers_.end());
  state->doublings = doublings_;
  if (ever_ready()) state->offer = text_of(encode_message(ToDaemon(offer_)));
  state->totals.totals = totals_;
  for (const auto& [id, done] : lease_totals_) {
    state->lease_totals.leases.push_back(done);
    state->lease_totals.leases.back().id = id;
  }
}

CarriedWorker WorkerPool::carry(const Worker& worker, const Admission& admission) const {
  CarriedWorker carried;
  carried.pid = worker.pid;
  carried.since = ns_of(worker.since);
  carried.has_ended = worker.is(State::kEnded);
  carried.process = worker.process.get();
  carried.control = worker.control.get();
  carried.reports = worker.reports.get();
  carried.log = worker.log.pipe();
  carried.reads_reports = worker.reads_reports;
  carried.report = text_of(worker.reader.begun());
  carried.line = worker.log.begun();
  carried.base = worker.base.number();
  carried.has_devices = worker.devices.has_value();
  carried.devices = worker.devices.value_or(std::vector<uint32_t>());
  carried.sm_percent = worker.sm_percent;
  carried.has_cgroup = worker.cgroup != nullptr;
  if (worker.kill_at) carried.kill_at = ns_of(*worker.kill_at);
  if (!worker.is(State::kBusy)) return carried;
  carried.start = text_of(worker.start);
  carried.attempts.assign(worker.attempts.begin(), worker.attempts.end());
  carried.identity = worker.identity;
  if (worker.permit) carried.permit = admission.carry(*worker.permit);
  if (worker.work) carried.work = worker.work->descriptor();
  if (worker.totals) carried.totals = text_of(encode_message(ToDaemon(*worker.totals)));
  carried.ended_by = worker.ended_by;
  carried.lease_ended = worker.lease_ended;
  carried.park = static_cast<uint32_t>(worker.park.state);
  carried.park_way = static_cast<uint32_t>(worker.park.way);
  carried.park_kept = worker.park.kept;
  carried.park_keeps = worker.park.keeps;
  carried.park_since = ns_of(worker.park.since);
  carried.parked_at = ns_of(worker.park.parked_at);
  carried.park_by = worker.park.by;
  carried.park_room_for = worker.park.room_for;
  carried.is_preempted = worker.park.is_preempted;
  carried.park_group = worker.park.group;
  carried.has_answered = worker.park.has_answered;
  carried.owes_answer = worker.park.owes_answer;
  carried.shares_with.assign(worker.shares_with.begin(), worker.shares_with.end());
  carried.shares_outside = worker.shares_outside;
  carried.unanswered_moves = worker.park.unanswered_moves;
  for (const auto& [gpu, place] : worker.park.moves) {
    carried.moves.insert(carried.moves.end(), {gpu, place});
  }
  for (const uint32_t device : worker.session.devices) {
    const auto bytes = worker.park.bytes.find(device);
    if (bytes != worker.park.bytes.end()) carried.park_bytes.push_back(bytes->second);
  }
  return carried;
}

Result<WorkerPool::Worker> WorkerPool::restore(const CarriedWorker& carried) {
  Worker worker;
  worker.pid = carried.pid;
  worker.since = time_of(carried.since);
  worker.process.reset(carried.process);
  worker.control.reset(carried.control);
  worker.reports.reset(carried.reports);
  worker.reads_reports = carried.reads_reports;
  worker.reader.go_on(bytes_of(carried.report));
  worker.log.set_worker(carried.pid);
  worker.log.go_on(UniqueFd(carried.log), carried.line);
  worker.base = Base::from_number(carried.base);
  if (carried.has_devices) worker.devices = carried.devices;
  worker.sm_percent = carried.sm_percent;
  if (carried.has_cgroup && cgroups_) worker.cgroup = cgroups_->of(carried.pid);
  if (carried.kill_at) worker.kill_at = time_of(*carried.kill_at);
  worker.state = carried.has_ended ? State::kEnded : State::kStopping;
  if (carried.start.empty()) return worker;
  worker.state = State::kBusy;
  worker.start = bytes_of(carried.start);
  RCUDA_ASSIGN_OR_RETURN(const ToWorker message, decode_message<ToWorker>(worker.start));
  const auto* const start = std::get_if<SessionStart>(&message);
  if (!start)
    return Status(Code::kInternal,
                  "the earlier server's state is damaged: it lacks the session of a worker");
  set_session(worker, *start, carried.identity);
  if (carried.attempts.size() != worker.attempts.size()) {
    return Status(Code::kInternal,
                  "the earlier server's state is damaged: the number of a session's sockets is "
                  "wrong");
  }
  std::ranges::copy(carried.attempts, worker.attempts.begin());
  if (carried.work >= 0) {
    RCUDA_ASSIGN_OR_RETURN(worker.work, WorkPage::open(UniqueFd(carried.work)));
  }
  if (!carried.totals.empty()) {
    RCUDA_ASSIGN_OR_RETURN(ToDaemon totals, decode_message<ToDaemon>(bytes_of(carried.totals)));
    worker.totals = std::get<SessionTotals>(std::move(totals));
  }
  worker.ended_by = carried.ended_by;
  worker.lease_ended = carried.lease_ended;
  const std::vector<uint32_t>& devices = worker.session.devices;
  if (carried.park > static_cast<uint32_t>(kLastParkState) ||
      carried.park_way > static_cast<uint32_t>(ParkWay::kWorker) ||
      (!carried.park_bytes.empty() && carried.park_bytes.size() != devices.size())) {
    return Status(
        Code::kInternal,
        "the earlier server's state is damaged: the state of a parked session is invalid");
  }
  worker.park.state = static_cast<ParkState>(carried.park);
  worker.park.way = static_cast<ParkWay>(carried.park_way);
  worker.park.kept = carried.park_kept;
  worker.park.keeps = carried.park_keeps;
  worker.park.since = time_of(carried.park_since);
  worker.park.parked_at = time_of(carried.parked_at);
  worker.park.by = carried.park_by;
  worker.park.room_for = carried.park_room_for;
  worker.park.is_preempted = carried.is_preempted;
  worker.park.group = carried.park_group;
  worker.park.has_answered = carried.has_answered;
  worker.park.owes_answer = carried.owes_answer;
  worker.shares_with.insert(carried.shares_with.begin(), carried.shares_with.end());
  worker.shares_outside = carried.shares_outside;
  worker.park.unanswered_moves = carried.unanswered_moves;
  for (size_t i = 0; i + 1 < carried.moves.size(); i += 2) {
    worker.park.moves[carried.moves[i]] = carried.moves[i + 1];
  }
  worker.park.room_asked = worker.park.awake_at = Clock::now();
  for (size_t i = 0; i < carried.park_bytes.size(); ++i) {
    worker.park.bytes[devices[i]] = carried.park_bytes[i];
  }
  return worker;
}

Status WorkerPool::restore(const CarriedState& state,
                           std::vector<std::unique_ptr<Admission::Permit>> permits) {
  if (!state.cgroups.path.empty()) cgroups_ = Cgroups::restore(state.cgroups);
  not_of_workers_.insert(state.not_of_workers.begin(), state.not_of_workers.end());
  doublings_ = state.doublings;
  totals_ = state.totals.totals;
  for (const wire::LeaseInfo& done : state.lease_totals.leases) lease_totals_[done.id] = done;
  if (!state.offer.empty()) {
    RCUDA_ASSIGN_OR_RETURN(ToDaemon offer, decode_message<ToDaemon>(bytes_of(state.offer)));
    offer_ = std::get<WorkerReady>(std::move(offer));
    if (device_sets_.needs_scout()) device_sets_.learn(offer_);
  }
  for (size_t i = 0; i < state.workers.size(); ++i) {
    RCUDA_ASSIGN_OR_RETURN(Worker worker, restore(state.workers[i]));
    worker.permit = std::move(permits[i]);
    groups_ = std::max(groups_, worker.park.group);
    workers_.push_back(std::move(worker));
  }
  return {};
}

}  // namespace rcuda::server
