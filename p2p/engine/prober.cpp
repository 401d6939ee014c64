#include "p2p/engine/prober.h"

#include <algorithm>

#include "common/base/log.h"
#include "common/base/units.h"
#include "p2p/staging/device_region.h"

namespace rcuda::p2p {
namespace {

constexpr uint64_t kSmallestBytes = 4096;
constexpr uint64_t kGrowth = 4;
constexpr uint64_t kWarmUpBytes = uint64_t{256} << 10;
// The number of samples of each size. The first single transfer warms up and is dropped. A wire has
// more samples, because times of sockets vary more than those of copy engines.
constexpr uint32_t kSingles = 4;
constexpr uint32_t kTrains = 2;
constexpr uint32_t kWireSingles = 6;
constexpr uint32_t kWireTrains = 5;
constexpr uint32_t kTrainLength = 4;
constexpr uint32_t kEchoes = 9;
// If a transfer takes this long, no larger size is measured.
constexpr double kLongUs = 5000;
// A new copy may have to wait for the end of the sample in progress. So for kQuietUs after a copy,
// samples take at most a twentieth of the time.
constexpr double kQuietUs = 20'000;
constexpr double kMeasuringShare = 20;
// The last attempt counts even if a copy ran during it: if a program copies all the time, every
// long sample is disturbed.
constexpr uint32_t kMostAttempts = 2;

}  // namespace

Prober::Prober(Environment& environment, PeerLink& link, const std::vector<Mapped>& mapped)
    : environment_(environment), link_(link) {
  plan(mapped);
}

Prober::~Prober() {
  abandon();
  give_back();
}

void Prober::abandon() {
  if (environment_.measuring == this) environment_.measuring = nullptr;
}

void Prober::give_back() {
  if (slot_) path_->release(*slot_);
  slot_.reset();
}

void Prober::want(Job job) {
  job.known = !job.leg->empty();
  job.bytes = job.known ? kWarmUpBytes : kSmallestBytes;
  if (!job.known || moves_bytes(job)) jobs_.push_back(std::move(job));
}

void Prober::plan(const std::vector<Mapped>& mapped) {
  for (size_t i = 0; i < environment_.devices.size(); ++i) {
    const int device = static_cast<int>(i);
    DeviceLegs& legs = environment_.legs[i];
    want({"copy-out", &legs.copy_out, Kind::kLane, device, Lane::kOut});
    want({"copy-in", &legs.copy_in, Kind::kLane, device, Lane::kIn});
    if (link_.device_outbox[i].bytes() > 0) {
      want({"copy within the device", &legs.within, Kind::kLane, device, Lane::kLocal});
      want({"registration", &legs.registration, Kind::kRegister, device});
    }
  }
  for (const Mapped& memory : mapped) {
    LegModel& leg = link_.pair(memory.device, memory.peer_device).pull_leg;
    want({"mapped copy", &leg, Kind::kLane, memory.device, Lane::kLocal, memory.base});
  }
  // Before the wires, because finish_job() subtracts the time of a message from the delay of a
  // wire.
  want({"message", &link_.message, Kind::kEcho});
  if (link_.host_path->needs_transfer()) want({"wire", &link_.wire, Kind::kWire});
  for (auto& [devices, pair] : link_.pairs) {
    if (!pair.device_path) continue;
    Job transfer{"gpudirect", &pair.gpudirect_leg, Kind::kWire, devices.first};
    transfer.path = &*pair.device_path;
    want(std::move(transfer));
  }
}

Result<bool> Prober::advance(bool busy) {
  const double now_us = environment_.now_us();
  // Copies with other peers use the same lanes and adapters. `activity` also shows a copy that
  // began and ended between two calls.
  busy |= environment_.copying() || environment_.activity != seen_activity_;
  seen_activity_ = environment_.activity;
  if (busy) busy_us_ = now_us;
  disturbed_ |= busy && running_;
  if (!running_) {
    if (busy || jobs_.empty()) return false;
    if (now_us < again_us_ && now_us - busy_us_ < kQuietUs) return false;
    return start();
  }
  const Job& job = jobs_.front();
  if (job.kind == Kind::kLane && transfers_left_ == 0 && ticket_ != 0) {
    const Result<bool> finished = environment_.lanes.finished(job.device, job.lane, ticket_);
    if (finished && !*finished) return false;
    end_sample(finished.ok());
    return true;
  }
  if (job.kind == Kind::kWire && transfers_left_ == 0) {
    end_sample(failure_.ok());
    return true;
  }
  return false;
}

// Begins a sample. An echo does not block other probers, because it uses nothing that they measure,
// and the peer may never answer it.
void Prober::begin_sample() {
  running_ = true;
  if (jobs_.front().kind != Kind::kEcho) environment_.measuring = this;
  began_us_ = environment_.now_us();
}

Result<bool> Prober::start() {
  Job& job = jobs_.front();
  if (environment_.measuring != nullptr) return false;
  if (!job.known && job.taken == 0 && job.samples.empty() && !job.leg->empty()) {
    // Another peer's prober has measured the leg in the meantime.
    job.known = true;
    job.bytes = kWarmUpBytes;
    if (!moves_bytes(job)) {
      jobs_.pop_front();
      return true;
    }
  }
  const bool in_gpu = job.kind == Kind::kLane || job.kind == Kind::kRegister;
  const bool allocates = in_gpu && environment_.existing_scratch(job.device) == 0;
  if ((allocates || job.kind == Kind::kRegister) && !environment_.ops.pause(Pause::kHolds))
    return false;
  const uint32_t singles = job.kind == Kind::kWire ? kWireSingles : kSingles;
  transfers_ = job.taken < singles || job.kind == Kind::kEcho ? 1 : kTrainLength;
  disturbed_ = false;
  failure_ = {};
  if (job.kind == Kind::kEcho) return start_echo();
  if (job.kind != Kind::kRegister && job.mapped == 0) {
    path_ = &path_of(job);
    // Transfers of a train may run at the same time, so each has its own slot.
    slot_ = path_->reserve(0, job.kind == Kind::kWire ? job.bytes * transfers_ : job.bytes);
    if (!slot_) {
      finish_job();
      return true;
    }
  }
  if (job.kind == Kind::kWire) {
    start_transfers();
    return true;
  }
  const Result<DeviceAddress> scratch = environment_.scratch(job.device);
  if (!scratch) {
    RCUDA_DEBUG("cannot measure the %s of device %d, so the planner has no model of this leg: %s",
                job.name, job.device, scratch.status().message().c_str());
    jobs_.pop_front();
    give_back();
    return true;
  }
  if (job.kind == Kind::kRegister) {
    start_registration(*scratch);
  } else {
    start_copies(*scratch);
  }
  return true;
}

Result<bool> Prober::start_echo() {
  begin_sample();
  EchoMessage echo;
  echo.tag = ++tag_;
  RCUDA_RETURN_IF_ERROR(link_.mailbox.send(echo));
  return true;
}

void Prober::start_transfers() {
  const Job& job = jobs_.front();
  transfers_left_ = transfers_;
  begin_sample();
  for (uint32_t i = 0; i < transfers_; ++i) {
    const Slot part{slot_->local + i * job.bytes, slot_->remote + i * job.bytes, job.bytes};
    path_->transfer(part, 0, transport::Company::kMany, link_.begin_transfer(kTransfer, i));
  }
}

// Takes a whole sample of registration, which blocks. The time includes the deregistration: both
// ends of a copy deregister the memory before the copy is over, because the program may free the
// memory after the copy.
void Prober::start_registration(DeviceAddress scratch) {
  const Job& job = jobs_.front();
  transfers_ = 1;
  begin_sample();
  const auto region = expose_device_memory(environment_.ops, *link_.link, job.device, scratch,
                                           job.bytes, For::kThisSide);
  if (region) (void)link_.link->unexpose(region->id);
  end_sample(region.ok());
}

void Prober::start_copies(DeviceAddress scratch) {
  const Job& job = jobs_.front();
  CopyBox box;
  box.width_bytes = job.bytes;
  box.source = scratch;
  box.destination = scratch;
  if (job.mapped != 0) {
    box.source = job.mapped;
  } else if (job.lane == Lane::kOut) {
    box.destination = slot_->local;
  } else if (job.lane == Lane::kIn) {
    box.source = slot_->local;
  } else {
    // Within the device: from one half of the scratch memory to the other.
    box.width_bytes = std::min(job.bytes, kLargestBytes / 2);
    box.destination = scratch + kLargestBytes / 2;
  }
  begin_sample();
  for (uint32_t i = 0; i < transfers_; ++i) {
    const Result<Ticket> ticket =
        environment_.lanes.copy(job.device, job.lane, {&box, 1}, box.width_bytes);
    if (!ticket) return end_sample(false);
    ticket_ = *ticket;
  }
}

void Prober::echoed(uint64_t tag) {
  if (running_ && tag == tag_ && jobs_.front().kind == Kind::kEcho) end_sample(true);
}

void Prober::transferred(const Status& status) {
  if (!running_ || transfers_left_ == 0) return;
  --transfers_left_;
  if (!status.ok()) failure_ = status;
}

void Prober::end_sample(bool good) {
  Job& job = jobs_.front();
  const double now_us = environment_.now_us();
  const double us = now_us - began_us_;
  again_us_ = now_us + kMeasuringShare * us;
  running_ = false;
  abandon();
  ticket_ = 0;
  give_back();
  if (!good) {
    RCUDA_DEBUG("cannot measure the %s of device %d, so the planner has no model of this leg",
                job.name, job.device);
    jobs_.pop_front();
    return;
  }
  if (job.known) {
    jobs_.pop_front();
    return;
  }
  if (disturbed_ && ++attempts_ < kMostAttempts) return;
  attempts_ = 0;
  const bool echo = job.kind == Kind::kEcho;
  // A round trip is two messages. At least 1 ns, because the clock may be too coarse for the
  // sample.
  const double value = std::max(echo ? us / 2 : us, 1e-3);
  if (job.taken > 0) job.samples.push_back({echo ? 0 : job.bytes, transfers_, value});
  ++job.taken;
  const uint32_t enough = echo                          ? kEchoes
                          : job.kind == Kind::kWire     ? kWireSingles + kWireTrains
                          : job.kind == Kind::kRegister ? kSingles
                                                        : kSingles + kTrains;
  if (job.taken < enough) return;
  job.taken = 0;
  const uint64_t room = path_of(job).bytes / (job.kind == Kind::kWire ? kTrainLength : 1);
  const bool staged = job.kind != Kind::kRegister && job.mapped == 0;
  const uint64_t limit = staged ? std::min(kLargestBytes, room) : kLargestBytes;
  const bool slow = us / transfers_ > kLongUs && job.samples.size() > enough;
  if (echo || slow || job.bytes * kGrowth > limit) {
    finish_job();
  } else {
    job.bytes *= kGrowth;
  }
}

void Prober::finish_job() {
  Job& job = jobs_.front();
  Result<LegModel> leg = Status(Code::kInternal, "not measured");
  if (job.kind == Kind::kEcho) {
    std::vector<double> times;
    for (const LegSample& sample : job.samples) times.push_back(sample.us);
    std::sort(times.begin(), times.end());
    const double us = times.empty() ? 1 : times[times.size() / 2];
    leg = LegModel::from_knots({{0, us}, {1, us}});
  } else {
    leg =
        LegModel::fit(job.samples, job.kind == Kind::kWire ? Sharing::kTogether : Sharing::kInTurn);
    // The sample ends when the completion has come back to the sender. A chunk that reports its own
    // arrival does not wait for the completion.
    if (leg && job.kind == Kind::kWire && path_of(job).tells_arrival()) {
      leg = leg->sooner(link_.message.time_us(0));
    }
  }
  if (leg) {
    RCUDA_DEBUG("measured the %s of device %d: %s for %s, %.2f GB/s at the most", job.name,
                job.device, microseconds_text(leg->time_us(kSmallestBytes)).c_str(),
                bytes_text(kSmallestBytes).c_str(), leg->peak_gbps());
    *job.leg = *std::move(leg);
  }
  jobs_.pop_front();
}

}  // namespace rcuda::p2p
