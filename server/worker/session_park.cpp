// A session's rest: from the daemon's request to park it until its GPU memory is back (parker.h).
//
// A call of the driver blocks while the process is locked. So from kAtRest on:
// - The executor thread waits here. It calls the driver only for kMove, to move the memory; the
//   process is not locked then.
// - The worker's other threads do not call the driver. They do so only for work in progress, copies
//   between servers and calls of NCCL, and a session that has any of these does not come to rest.
//   Exception: for kSuspend, NCCL releases its memory; the process is not locked then.
// - NCCL's own threads may call the driver. Then they block until the session wakes.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "api/opcodes.h"
#include "common/base/log.h"
#include "common/wire/codec.h"
#include "server/sandbox/isolation.h"
#include "server/worker/session_loop.h"

namespace rcuda::server {
namespace {

using What = ParkAnswer::What;
using SteadyTime = std::chrono::steady_clock::duration;

// How often a waking session tries to book its memory in its quotas.
constexpr SteadyTime kQuotaPause = std::chrono::milliseconds(50);
// A wait for a step of the daemon or for NCCL is repeated after this time.
constexpr SteadyTime kLongestWait = std::chrono::hours(1);
// The worker moves the session's memory itself if the memory that stays on the devices is at most
// kSmallRest, or at most 1/kSmallPart of the memory that moves. Otherwise the driver moves
// everything.
constexpr uint64_t kSmallRest = 256u << 20;
constexpr uint64_t kSmallPart = 16;
// The first version of CUDA whose driver (610) restores exports. A handle that an earlier driver
// made before a park cannot be opened after it (seen with 580: CUDA_ERROR_INVALID_HANDLE).
constexpr int kRestoresExportsFrom = 13030;

}  // namespace

// Returns why the session cannot rest. kBusy is temporary.
std::optional<ParkAnswer> SessionLoop::obstacle() {
  const auto cannot = [](const char* why) { return ParkAnswer{What::kCannot, why}; };
  if (contexts_.watches()) return cannot("programs share its GPU through NVIDIA's MPS");
  if (services_.peers.active()) return cannot("it has connections to workers of other servers");
  if (executor_.names.are_of_other_servers()) {
    return cannot("it shares memory or events with sessions of other servers");
  }
  int version = 0;
  if (executor_.names.has_exported() && movable_bytes().empty() &&
      services_.driver.cuDriverGetVersion(&version) == CUDA_SUCCESS &&
      version < kRestoresExportsFrom) {
    return cannot(
        "it has exported memory or events to other processes, and this driver does not restore "
        "exports (driver 610 does)");
  }
  const bool any_command = !held_back_.empty() || ring_.pending();
  if ((any_command && !rest_until_) || services_.jobs.any() || services_.device_waits.any() ||
      !services_.completions.empty() || services_.mirrors.any_after_waits() ||
      services_.arrivals.expected() != 0 || (device_trace_ && device_trace_->pending()) ||
      executor_.nccl.is_busy() || services_.idle.any_work()) {
    return ParkAnswer{What::kBusy, "it has work in progress"};
  }
  if (services_.idle.any_capture())
    return ParkAnswer{What::kBusy, "one of its streams is in capture"};
  return std::nullopt;
}

// Asks the daemon about room on a device, in the middle of a command, and waits for the daemon's
// kRoom. Returns the number in the kRoom, or 0 if the session is over.
uint64_t SessionLoop::ask_for_room(What what, std::vector<uint64_t> about) {
  if (what == What::kRoomAsked) publish_work();
  const MemoryMeter& memory = services_.meters.memory;
  for (const uint32_t ordinal : memory.ordinals()) {
    // The meter already counts the allocation that waits for room, but the session does not hold
    // its bytes yet.
    const bool waits = what == What::kRoomWanted && ordinal == about.at(0);
    const uint64_t held = memory.held(ordinal);
    if (options_.work)
      options_.work->hold(ordinal, held - (waits ? std::min(held, about.at(1)) : 0));
  }
  options_.parker->answer(what, {}, std::move(about));
  std::optional<uint64_t> room;
  const auto has_come = [&] {
    room = options_.parker->take_room();
    return room || stop_.load();
  };
  for (;;) {
    const Status status = link_.wait(has_come, Clock::now() + kLongestWait);
    if (room || stop_.load()) return room.value_or(0);
    if (!status.ok() && status.code() != Code::kTimeout) return 0;
  }
}

// Stores the free and the total memory of each device: cuMemGetInfo returns these values while the
// session is parked.
void SessionLoop::remember_memory() {
  memory_info_.clear();
  ContextState* const before = services_.objects.current_context();
  for (uint32_t i = 0; i < services_.resources.devices.size(); ++i) {
    MemoryInfo info;
    if (services_.objects.make_current(wire::primary_context_id(i)) == CUDA_SUCCESS &&
        services_.driver.cuMemGetInfo_v2(&info.free, &info.total) == CUDA_SUCCESS) {
      memory_info_[services_.resources.devices[i].device] = info;
    }
  }
  if (before) (void)services_.objects.make_current(before->id);
}

// The bytes that the worker itself can move, by device. Empty if the driver must move them.
std::vector<uint64_t> SessionLoop::movable_bytes() {
  std::map<CUdevice, uint64_t> bytes = services_.movable.bytes();
  std::vector<uint64_t> by_device;
  uint64_t moves = 0, held = 0;
  for (const SessionDevice& device : services_.resources.devices) {
    by_device.push_back(bytes[device.device]);
    moves += by_device.back();
  }
  for (const uint32_t ordinal : services_.meters.memory.ordinals()) {
    held += services_.meters.memory.held(ordinal);
  }
  const uint64_t stays = held - std::min(held, moves);
  const bool is_fit = moves > 0 && stays <= std::max(kSmallRest, moves / kSmallPart);
  return is_fit ? by_device : std::vector<uint64_t>();
}

bool SessionLoop::move_to_host() {
  const std::map<CUdevice, uint64_t> bytes = services_.movable.bytes();
  if (const Status moved = services_.movable.park(); !moved.ok()) {
    options_.parker->answer(What::kNotMoved, moved.context());
    return false;
  }
  services_.meters.memory.give_up(bytes);
  parked_ = true;
  options_.parker->answer(What::kMoved);
  return true;
}

// Call it only when the session's quotas have booked the memory again.
bool SessionLoop::move_back(uint64_t keep) {
  const Result<bool> moved = services_.movable.wake(keep);
  const bool is_back = moved.ok() && *moved;
  options_.parker->answer(is_back ? What::kMoved : What::kNotMoved,
                          moved.ok() ? "" : moved.status().context());
  parked_ = !is_back;
  return is_back;
}

// Carries out a command that needs no GPU. Returns false if the command needs a GPU.
bool SessionLoop::answer_at_rest(std::span<const std::byte> frame) {
  wire::CommandHeader header;
  if (frame.size() < sizeof header) return false;
  std::memcpy(&header, frame.data(), sizeof header);
  if (header.opcode == static_cast<uint16_t>(wire::Custom::kPing) && header.call == 0) return true;
  if (header.opcode == static_cast<uint16_t>(wire::Custom::kWake) && header.call == 0) {
    wake_wanted_ = true;
    return true;
  }
  if (header.opcode == static_cast<uint16_t>(wire::Custom::kSessionEnd)) {
    ended_ = true;
    return true;
  }
  if (header.opcode != static_cast<uint16_t>(api::Opcode::cuMemGetInfo_v2) ||
      !has_reply_slot(header)) {
    return false;
  }
  const ContextState* const context = services_.objects.find_context(header.context);
  const auto info = memory_info_.find(context ? context->device : -1);
  if (info == memory_info_.end()) return false;
  const ReplyTarget target{header.call, header.reply_slot, header.reply_bytes};
  wire::Encoder out(target.capacity());
  out.value<size_t>(info->second.free);
  out.value<size_t>(info->second.total);
  if (!out.ok()) return false;
  services_.answers.reply(target, CUDA_SUCCESS, out.body());
  return true;
}

// Takes commands out of the ring until a command needs the GPU, and holds that command back.
Status SessionLoop::read_at_rest() {
  wake_wanted_ = wake_wanted_ || !held_back_.empty();  // a held-back command wakes the session
  while (held_back_.empty() && !ended_) {
    RCUDA_ASSIGN_OR_RETURN(const std::span<const std::byte> frame, ring_.try_next());
    if (frame.empty()) return {};
    if (waits_ahead_.was_ahead() || answer_at_rest(frame)) {
      ++services_.done[wire::Counter::kCommands];
    } else {
      held_back_.assign(frame.begin(), frame.end());
      wake_wanted_ = true;
    }
  }
  return {};
}

bool SessionLoop::is_over() const { return stop_.load() || ended_; }

// Waits for the daemon's next step. Returns nullopt if the session is over, `until` has come, a
// time limit is due, or a command has come. Carries out kPlace and kPlaceBack itself, and then also
// returns nullopt.
Result<std::optional<ParkStep>> SessionLoop::next_step(Clock::time_point until) {
  if (parked_ && time_.limits()) RCUDA_RETURN_IF_ERROR(check_limits());
  const uint64_t due = parked_ ? limits_due() : SessionTime::kNever;
  const auto ready = [this, due] {
    return stop_.load() || options_.parker->any() ||
           (parked_ && held_back_.empty() && ring_.pending()) ||
           (due != SessionTime::kNever && now() >= due);
  };
  const Status status = link_.wait(ready, until);
  if (!status.ok() && status.code() != Code::kTimeout) return status;
  if (stop_.load()) return std::optional<ParkStep>();
  std::optional<ParkStep> step = options_.parker->take();
  const auto what = step ? step->what : ParkStep::What::kStay;
  if (what != ParkStep::What::kPlace && what != ParkStep::What::kPlaceBack) return step;
  // Releases the booking of memory on the session's old GPUs.
  const bool asks = what == ParkStep::What::kPlace;
  if (asks && !services_.meters.memory.has_given_up()) services_.meters.memory.give_up();
  move_to(step->devices);
  if (asks) options_.parker->answer(What::kPlaced);
  return std::optional<ParkStep>();
}

// Counts the session's memory on these GPUs of the server from now on.
void SessionLoop::move_to(const std::vector<uint32_t>& devices) {
  if (options_.work) {
    for (const uint32_t before : services_.meters.memory.ordinals()) {
      options_.work->hold(before, 0);
    }
  }
  services_.meters.memory.move(devices);
  publish_work();
}

// Takes a step of the daemon while the session is not parked: kRest, or kStay, which withdraws
// kRest.
Status SessionLoop::take_step() {
  const std::optional<ParkStep> wish = options_.parker->take();
  if (wish && wish->what == ParkStep::What::kRest) {
    if (wish->keep != 0) rest_until_ = Clock::now() + std::chrono::milliseconds(wish->keep);
    return come_to_rest();
  }
  if (wish && wish->what == ParkStep::What::kStay && rest_until_) {
    rest_until_.reset();
    options_.parker->answer(What::kBusy, "its worker did not stop calling the driver in time");
  }
  return rest_until_ ? come_to_rest() : Status();
}

// Lets the session rest, or answers why it cannot rest. If it cannot rest yet and rest_until_ has
// not passed, does nothing.
Status SessionLoop::come_to_rest() {
  if (const auto why = obstacle()) {
    if (rest_until_ && Clock::now() < *rest_until_) return {};
    rest_until_.reset();
    options_.parker->answer(why->what, why->why);
    return {};
  }
  rest_until_.reset();
  services_.answers.show_park_word(++rests_);
  link_.announce_silence(true);  // the driver may stop this process for as long as it moves memory
  const Status status = rest();
  link_.announce_silence(false);
  if (!stop_.load()) services_.answers.show_park_word(0);
  last_activity_ = Clock::now();
  return status;
}

// Makes NCCL release the memory of its communicators, or take this memory again. `suspends`: the
// tags for Nccl::suspend(); null: take the memory again. Returns when the other ranks have released
// or taken their memory too, or when the session is over. `why`: the reason if NCCL failed.
Status SessionLoop::move_nccl(const std::vector<uint64_t>* suspends, std::string* why) {
  const auto outcome = std::make_shared<std::optional<std::string>>();
  const auto then = [outcome](const std::string& text) { *outcome = text; };
  suspends ? executor_.nccl.suspend(*suspends, then) : executor_.nccl.resume(then);
  while (!*outcome && !stop_.load()) {
    const Status status = link_.wait([this] { return stop_.load() || services_.jobs.any(); },
                                     Clock::now() + kLongestWait);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
    services_.jobs.run();
  }
  *why = outcome->value_or("");
  return {};
}

// Returns when the session is awake again, is not parked after all, or is over (is_over()).
Status SessionLoop::rest() {
  remember_memory();
  services_.gpu_direct.forget();
  flush_trace();
  publish_work();
  wake_wanted_ = false;
  RCUDA_RETURN_IF_ERROR(be_parked());
  if (is_over()) return {};
  std::string why;
  RCUDA_RETURN_IF_ERROR(move_nccl(nullptr, &why));
  if (why.empty()) return {};
  RCUDA_WARN(
      "NCCL could not take back its memory after the session was parked, or after an attempt "
      "to park it: %s",
      why.c_str());
  (void)services_.answers.events().notice(
      false,
      "NCCL could not take back its memory after the session was parked, or after an attempt to "
      "park it: " +
          why);
  return {};
}

Status SessionLoop::be_parked() {
  bool needs_helper = true;
  std::optional<DumpableScope> for_helper{std::in_place};
  options_.parker->answer(What::kAtRest, {}, movable_bytes());
  for (;;) {
    RCUDA_ASSIGN_OR_RETURN(const auto step, next_step(Clock::now() + kLongestWait));
    if (is_over() || (step && step->what == ParkStep::What::kStay)) return {};
    if (step && step->what == ParkStep::What::kWake) wake_wanted_ = true;
    if (step && step->what == ParkStep::What::kMove) {
      needs_helper = false;
      for_helper.reset();
      if (!move_to_host()) return {};
    }
    if (step && step->what == ParkStep::What::kParked) {
      services_.meters.memory.give_up();
      parked_ = true;
    }
    if (parked_) break;
    if (!step || step->what != ParkStep::What::kSuspend) continue;
    std::string why;
    RCUDA_RETURN_IF_ERROR(move_nccl(&step->tags, &why));
    options_.parker->answer(why.empty() ? What::kSuspended : What::kCannot, why);
  }
  for_helper.reset();
  for (;;) {
    RCUDA_RETURN_IF_ERROR(read_at_rest());
    if (is_over()) return {};
    if (wake_wanted_) {
      if (needs_helper) for_helper.emplace();
      return wake_up();
    }
    RCUDA_ASSIGN_OR_RETURN(const auto step, next_step(Clock::now() + kLongestWait));
    if (step && step->what == ParkStep::What::kWake) wake_wanted_ = true;
  }
}

// Returns when the session is awake or over. First books the session's memory in its quotas, and
// again after a kPlace. Until the quotas have room, the worker does not send kWakeWanted, so the
// daemon keeps the session in ParkState::kParked.
Status SessionLoop::wake_up() {
  MemoryMeter& memory = services_.meters.memory;
  for (;;) {
    if (memory.has_given_up() && memory.take_back()) options_.parker->answer(What::kWakeWanted);
    const bool is_booked = !memory.has_given_up();
    RCUDA_ASSIGN_OR_RETURN(const auto step,
                           next_step(Clock::now() + (is_booked ? kLongestWait : kQuotaPause)));
    RCUDA_RETURN_IF_ERROR(read_at_rest());
    if (is_over()) return {};
    if (!is_booked || !step) continue;
    if (step->what == ParkStep::What::kMove && move_back(step->keep)) return {};
    if (step->what != ParkStep::What::kAwake) continue;
    parked_ = false;
    return {};
  }
}

}  // namespace rcuda::server
