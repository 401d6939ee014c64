// Staging: how pageable memory reaches the GPUs of a session.
//
// The worker owns a page-locked region; the client divides it into slots. To the device, several
// threads fill slots (shared memory: memcpy into the mapping; other media: Link::write from the
// application's memory) and post one kCopyStaged each, so that copying, the wire and the DMA
// overlap. To the host it runs the other way round. Slot count and size: eight threads with slots
// of 2 MiB reach 41 GB/s where CUDA's own pageable copy reaches 9 to 18 (docs/performance.md).
//
// Threads: any, at once; they share the slots. Blocking: to_device() until the source has been read
// (the DMA may still run), to_host() until the destination is written.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include <cuda.h>

#include "client/session/session.h"
#include "client/session/task_pool.h"
#include "common/wire/handshake.h"

namespace rcuda::client {

class Staging {
 public:
  static Result<std::unique_ptr<Staging>> open(Session& session, const wire::ReadyEvent& ready);
  ~Staging();

  static constexpr size_t kSlotBytes = 2u << 20;
  // Every slot keeps a completion word. The other half is for waits and events.
  static constexpr uint32_t kMostSlots = wire::ClientWindow::kCompletionCount / 2;

  // `stream` is an id of this session; both work in its order. An error: of this copy, part of
  // which may have been sent. to_device() leaves errors of earlier commands to the caller,
  // to_host() reports them once all is there.
  CUresult to_device(wire::ObjectId context, wire::ObjectId stream, CUdeviceptr destination,
                     const void* source, size_t bytes);
  CUresult to_host(wire::ObjectId context, wire::ObjectId stream, void* destination,
                   CUdeviceptr source, size_t bytes);

  // One slot for the caller's own use: fill or read it, tell the worker its offset together with
  // {word, sequence}, and give it back; it is free again once the word got there.
  struct Slot {
    uint32_t index = 0;
    uint64_t offset = 0;  // in the staging region
    Session::Word word;   // sequence: the one to ask for
  };
  Slot acquire();
  void release(const Slot& slot);
  // The slot's memory, or null where the medium cannot map it and fill() and drain() are needed.
  std::byte* memory(const Slot& slot) { return mapping_ ? mapping_ + slot.offset : nullptr; }
  CUresult fill(const Slot& slot, const void* source, size_t bytes);
  CUresult drain(const Slot& slot, void* destination, size_t bytes);

 private:
  explicit Staging(Session& session) : session_(session) {}

  std::optional<Slot> try_acquire();
  void make_ready(Slot* slot);

  Session& session_;
  transport::RegionId region_{};
  std::byte* mapping_ = nullptr;  // null where the medium cannot map
  std::mutex mutex_;
  std::condition_variable freed_;
  std::deque<Slot> free_;  // oldest first: most likely to be done
};

}  // namespace rcuda::client
