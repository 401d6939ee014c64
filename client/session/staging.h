// Staging: copies between pageable memory and the GPUs of a session.
//
// The worker owns a page-locked region; the client divides it into slots. For a copy to the device,
// several threads fill slots (shared memory: memcpy into the mapping; other media: writes of the
// Link from the application's memory) and post one kCopyStaged each, so that copying, transport and
// DMA overlap. A copy to the host runs the other way. Over sockets the bytes are sent without a
// request. If the stream can wait for bytes (fills_after_command()), the client sends bytes for the
// device together with the command. The worker writes bytes for the host as soon as it has them.
// Slot count and size: eight threads with slots of 2 MiB reach 41 GB/s, where CUDA's own pageable
// copy reaches 9 to 18.
//
// Threads: any, concurrently; they share the slots. Blocking: to_device() blocks until the source
// has been read (the DMA may still run), to_host() until the destination is written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <cuda.h>

#include "client/session/session.h"
#include "client/session/task_pool.h"
#include "common/base/mutex.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class Staging {
 public:
  static Result<std::unique_ptr<Staging>> open(Session& session, const wire::ReadyEvent& ready);
  ~Staging();

  static constexpr size_t kSlotBytes = 2u << 20;
  // Every slot keeps a completion word. The slots take half of the words at most; the other half is
  // for waits and events.
  static constexpr uint32_t kMostSlots = wire::ClientWindow::kCompletionCount / 2;

  // Copies in the order of the route's stream. Both functions return errors of the copy itself,
  // after which a part of the copy may have been sent. They do not return errors of earlier
  // commands.
  CUresult to_device(const Route& route, CUdeviceptr destination, const void* source, size_t bytes);
  CUresult to_host(const Route& route, void* destination, CUdeviceptr source, size_t bytes);
  struct Part {
    std::byte* to;
    CUdeviceptr from;
    size_t bytes;
  };
  // Copies several parts, which are in flight together.
  CUresult to_host(const Route& route, std::span<const Part> parts);
  // Whether at least half of the slots are ready, so that a copy of one slot does not block.
  bool has_room();

  // One slot for the caller's own use. The caller fills or reads it, sends its offset to the worker
  // together with {word, sequence}, and releases it. The next user of the slot first waits until
  // the word has reached the sequence.
  struct Slot {
    uint64_t offset = 0;  // in the staging region
    Word word;            // its sequence is the one to send
    const Timeline* user = nullptr;
  };
  // Blocks until the worker no longer uses the slot. `user`: the timeline that the slot's command
  // goes to; null if the worker executes it at once. The commands of one timeline never occupy all
  // slots, so a stream that is stalled does not stop the copies of other streams.
  Slot acquire(const Timeline* user);
  void release(const Slot& slot);
  // Returns the slot's memory, or null if the medium cannot map it; the caller then needs fill()
  // and drain().
  std::byte* memory(const Slot& slot) { return mapping_ ? mapping_ + slot.offset : nullptr; }
  CUresult fill(const Slot& slot, const void* source, size_t bytes);
  CUresult drain(const Slot& slot, void* destination, size_t bytes);

 private:
  explicit Staging(Session& session) : session_(session) {}

  // Like acquire(), but does not block. Returns nullopt if no slot is ready for `user`.
  std::optional<Slot> try_acquire(const Timeline* user);
  bool is_ready(const Slot& slot) const;
  void collect() RCUDA_REQUIRES(mutex_);  // moves unused slots to ready_
  // Returns a ready slot if there is one and `user` does not have its full share of the slots yet.
  // Otherwise returns the slot that `user` released first, which may not be ready yet; nullopt if
  // `user` has released no slot. With `only_ready`, returns nullopt instead of a slot that may not
  // be ready.
  std::optional<Slot> take(const Timeline* user, bool only_ready);
  Slot take_any();  // for a lost session: the worker writes no more words

  // Whether the route's stream can wait for bytes that arrive after their command. The stream waits
  // at a gate of the worker; only streams of the first device's primary context can use gates
  // (server/executor/host_memory/arrival_gates.h). For other streams, the caller first waits until
  // the bytes are in the slot.
  bool fills_after_command(const Route& route) const;

  Session& session_;
  transport::RegionId region_{};
  bool has_gates_ = false;        // ReadyEvent::gates
  std::byte* mapping_ = nullptr;  // null where the medium cannot map
  Mutex mutex_;
  CondVar freed_;
  std::deque<Slot> ready_ RCUDA_GUARDED_BY(mutex_);
  // Released, but the worker may still use them; oldest first.
  std::vector<Slot> used_ RCUDA_GUARDED_BY(mutex_);
  std::vector<const Timeline*> in_hand_ RCUDA_GUARDED_BY(mutex_);  // users of the acquired slots
  size_t slot_count_ RCUDA_GUARDED_BY(mutex_) = 0;
  std::atomic<int> waiting_{0};  // threads in acquire() that wait for a release()
};

}  // namespace rcuda::client
