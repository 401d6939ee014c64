// CommandScheduler: decides when a command is carried out:
//
//   now        the usual case
//   held back  may_start() is false: the command and all commands after it wait before they reach
//              the executor. The usual reasons:
//              - A copy waits because earlier copies have exceeded a bandwidth limit (CopyPace).
//              - A stream is held for a peer worker, and the driver may wait for the device in the
//                command (allocations; loading code, also at the first launch of a kernel; ...).
//                Such a call also blocks the driver calls of the engine for peer copies, which has
//                to end the copy that holds the stream.
//   postponed  must_postpone() is true: the driver would block its caller until the device is idle.
//              Only the client thread that made the call waits. The command runs when the device is
//              idle (DeviceWaits) and peer workers have released the memory that the command frees.
//
// While a stream is held, commands that only queue work may run, but only a bounded number of them.
// Their work may have to wait for the held stream, and fills the queues of the device, which are
// finite and shared by its streams. If all queues were full, the engine could not queue the copy
// that ends the hold. So these commands, and copies that would hold a stream, are held back while
// too many streams have work. Such a copy is also held back until the connection to the peer is
// made or has failed, because making the connection needs driver calls that wait for the device.
// No two workers wait for each other: a command waits here only for copies whose two halves the
// client sent before it (client/copy/peer.cpp; the proof is in p2p/api/pause.h).
//
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "api/command_traits.h"
#include "api/traits.h"
#include "common/wire/protocol.h"
#include "server/executor/core/copy_pace.h"
#include "server/executor/core/services.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/peer_hub.h"

namespace rcuda::server {

class CommandScheduler {
 public:
  // Calls the may_wait() of a command's handler (WhileHeld::kAsks).
  using MayWait =
      std::function<bool(const wire::CommandHeader& header, std::span<const std::byte> body)>;
  // The components in `services` outlive this object.
  CommandScheduler(const LoopServices& services, MayWait may_wait)
      : services_(services), may_wait_(std::move(may_wait)) {}

  // Whether the next command may start now. If not, the caller asks again at due() and when a copy
  // with a peer ends. If crowded(), the caller keeps asking, because no event reports that a stream
  // has done its work.
  // `now()` returns the time in nanoseconds, as for CopyPace. It is called only if the bandwidth
  // has a limit.
  template <typename Clock>
  bool may_start(std::span<const std::byte> frame, const Clock& now) {
    if (services_.pace.limits() && !services_.pace.may_start(frame, now())) [[unlikely]]
      return false;
    if (!services_.peers.active()) [[likely]]
      return true;
    return may_start_with_peers(frame);
  }
  bool crowded() const { return crowded_; }
  // The time in nanoseconds when the bandwidth limit allows the held-back command. If this time has
  // passed, the command is held back because of copies with a peer.
  uint64_t due() const { return services_.pace.limits() ? services_.pace.until() : 0; }

  // Whether the call must be postponed, because the driver would wait for the device in it. If so,
  // makes the call's context current. Only calls with an answer are postponed. Before a posted
  // command of this kind, the client itself waits (await_idle() of client/route/find_route.h). The
  // handlers that unload modules postpone the driver's call themselves.
  bool must_postpone(const wire::CommandHeader& header) {
    return header.call != 0 && api::traits_of(header.opcode).waits_for_device &&
           services_.objects.make_current(header.context) == CUDA_SUCCESS &&
           services_.objects.current_context();
  }
  // Postpones the call. `carry_out` runs in a job (Jobs), or between two commands.
  void postpone(const wire::CommandHeader& header, std::span<const std::byte> body,
                std::function<void(std::span<const std::byte> body)> carry_out);

  // To be called before a command that frees memory in stream order. Makes peer workers end their
  // mappings of the memory. The command need not wait for the peer workers: when the stream reaches
  // the command, the copies of the memory are over.
  void note_free_in_stream(uint16_t opcode, std::span<const std::byte> body);

  // To be called between two commands: makes the calls that wait until no stream is held
  // (DeviceWaits), or grants a pause that the engine wants. Returns whether it did anything.
  bool run_freed();

 private:
  bool may_start_with_peers(std::span<const std::byte> frame);
  bool begin_pause();
  // The command's trait `while_held`; for kAsks, the decision of its handler's may_wait().
  api::WhileHeld effect_of(const api::CommandTraits& traits, const wire::CommandHeader& header,
                           std::span<const std::byte> body);
  bool has_room(wire::ObjectId context);
  bool frees_pool_memory(uint16_t opcode, std::span<const std::byte> body) const;
  // Calls `then` when no peer worker copies or maps the memory that the command frees. Calls it at
  // once if the command frees no memory in the way `how`, if the driver does not know the memory,
  // or if the session has no peers.
  void when_released(api::Frees how, uint16_t opcode, std::span<const std::byte> body,
                     std::function<void()> then);

  const LoopServices services_;
  const MayWait may_wait_;
  int behind_ = 0;        // commands allowed to run since the last time that no stream was held
  bool crowded_ = false;  // may_start() refused the last command because too many streams have work
};

}  // namespace rcuda::server
