#include "server/executor/core/command_scheduler.h"

#include <cstring>
#include <utility>

#include "api/traits.h"
#include "common/wire/codec.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/peers/device_waits.h"
#include "server/executor/streams/completions.h"
#include "server/executor/streams/idle.h"

namespace rcuda::server {

bool CommandScheduler::may_start_with_peers(std::span<const std::byte> frame) {
  // The most commands that may run while a stream is held. A stream's queue in the driver takes
  // about a thousand.
  constexpr int kMostBehind = 256;
  const p2p::Pause paused = services_.peers.paused();
  if (paused == p2p::Pause::kWork) return false;
  wire::CommandHeader header;
  if (frame.size() < sizeof header) return true;  // malformed: the session loop refuses it
  std::memcpy(&header, frame.data(), sizeof header);
  const auto body = frame.subspan(sizeof header);
  const api::CommandTraits& traits = api::traits_of(header.opcode);
  bool holds = false;
  if (traits.holds_stream) {
    if (body.size() < traits.body_bytes) return true;
    const p2p::PeerId link = *api::member(body, traits.link);
    holds = api::holds_stream(traits, body) && services_.peers.knows(link);
    const bool others_wait = services_.device_waits.any() || paused != p2p::Pause::kNone ||
                             services_.peers.wants(p2p::Pause::kHolds);
    if (holds && (others_wait || !services_.peers.is_decided(link))) return false;
  }
  crowded_ = false;
  if (!services_.peers.holding()) {
    behind_ = 0;
    if (!holds) return true;
  }
  const api::WhileHeld effect = effect_of(traits, header, body);
  if (behind_ >= kMostBehind || effect == api::WhileHeld::kWaits) return false;
  if (effect == api::WhileHeld::kQueues && !has_room(header.context)) {
    crowded_ = true;
    return false;
  }
  ++behind_;
  return true;
}

// Whether one more stream of the device may get work. The command's stream counts as one more
// stream even if it has work already. The driver is queried only if the count without a query is
// too high.
bool CommandScheduler::has_room(wire::ObjectId id) {
  const size_t most = services_.resources.most_streams;
  ContextState* context = most > 0 ? services_.objects.find_context(id) : nullptr;
  if (!context) return true;
  const size_t waiting = services_.completions.waiting_streams() +
                         static_cast<size_t>(services_.peers.waiting_streams());
  return waiting + services_.idle.count_busy_streams(context->device, false) < most ||
         waiting + services_.idle.count_busy_streams(context->device, true) < most;
}

// Runs on the executor thread, which also queues the program's work. So no work is queued between
// known_idle() and the start of a kWork pause. After that, may_start() refuses work until the pause
// ends.
bool CommandScheduler::begin_pause() {
  if (services_.peers.holding()) return false;
  if (services_.peers.wants(p2p::Pause::kWork) && services_.idle.known_idle()) {
    return services_.peers.begin_pause(p2p::Pause::kWork);
  }
  return services_.peers.wants(p2p::Pause::kHolds) &&
         services_.peers.begin_pause(p2p::Pause::kHolds);
}

// Whether the command frees memory of a pool. The driver frees such memory without waiting for the
// device.
bool CommandScheduler::frees_pool_memory(uint16_t opcode, std::span<const std::byte> body) const {
  if (api::traits_of(opcode).frees != api::Frees::kAtOnce) return false;
  const auto address = wire::Decoder(body).value<CUdeviceptr>();
  CUmemoryPool pool = nullptr;
  return services_.driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                                address) == CUDA_SUCCESS &&
         pool;
}

void CommandScheduler::when_released(api::Frees how, uint16_t opcode,
                                     std::span<const std::byte> body, std::function<void()> then) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (!services_.peers.active() || api::traits_of(opcode).frees != how ||
      services_.driver.cuMemGetAddressRange_v2(
          &base, &bytes, wire::Decoder(body).value<CUdeviceptr>()) != CUDA_SUCCESS) {
    return then();
  }
  services_.peers.when_unused(base, bytes, std::move(then));
}

void CommandScheduler::note_free_in_stream(uint16_t opcode, std::span<const std::byte> body) {
  if (services_.peers.active()) when_released(api::Frees::kInStream, opcode, body, [] {});
}

void CommandScheduler::postpone(const wire::CommandHeader& header, std::span<const std::byte> body,
                                std::function<void(std::span<const std::byte> body)> carry_out) {
  const auto copy = std::make_shared<const std::vector<std::byte>>(body.begin(), body.end());
  DeviceWaits::Call call;
  call.context = services_.objects.current_context()->id;
  call.waits_for_work = !frees_pool_memory(header.opcode, body);
  // Memory is not freed while copies between servers use it.
  call.before = [this, opcode = header.opcode, copy](DeviceWaits::Action then) {
    when_released(api::Frees::kAtOnce, opcode, *copy, std::move(then));
  };
  call.run = [copy, carry_out = std::move(carry_out)] { carry_out(*copy); };
  services_.device_waits.postpone(std::move(call));
}

bool CommandScheduler::run_freed() { return begin_pause() || services_.device_waits.run_freed(); }

api::WhileHeld CommandScheduler::effect_of(const api::CommandTraits& traits,
                                           const wire::CommandHeader& header,
                                           std::span<const std::byte> body) {
  using api::WhileHeld;
  if (traits.while_held != WhileHeld::kAsks) return traits.while_held;
  return may_wait_(header, body) ? WhileHeld::kWaits : WhileHeld::kQueues;
}

}  // namespace rcuda::server
