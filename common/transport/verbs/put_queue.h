// PutQueue: the sending half of the command queue pair. A put becomes one RDMA write, or several if
// it is larger than a quarter of the staging ring. The queue pair is ordered, so the last word of
// such a put arrives last.
//
// Small puts are sent inline; others are copied into a registered staging ring. One thread at a
// time posts. Requests that other threads add meanwhile are then posted as one list, with one
// doorbell. A put requests a completion (is signalled) only if a quarter of the queue's places, or
// of the ring's bytes, has been used since the last signalled put. Only the immediates of the wake
// protocol consume receives of the peer; verbs_link.cpp bounds their number.
//
// Within one RDMA write, bytes arrive in ascending order. InfiniBand does not guarantee this, but
// every RC adapter does it unless relaxed ordering is requested, and the window's registration does
// not request it.
//
// Any thread may call. put() blocks (and polls for its completions) while the queue or the ring is
// full.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/transport/link_core.h"
#include "common/transport/mapping.h"
#include "common/transport/verbs/handles.h"
#include "common/transport/verbs/loss.h"

namespace rcuda::transport::verbs {

class PutQueue {
 public:
  static constexpr uint32_t kInlineBytes = 220;  // requested size; a launch of about 100 bytes fits
  static constexpr uint32_t kDepth = 256;

  struct Target {
    uint64_t address = 0;
    uint32_t rkey = 0;
  };

  PutQueue(LiveCounters& counters, Loss::Note on_error)
      : counters_(counters), on_error_(std::move(on_error)) {}

  Status open(ibv_pd* pd);
  // Called before the first put, once the queue pair is connected.
  void start(ibv_qp* qp, ibv_cq* cq, uint32_t inline_bytes, Target window);

  // `wakes` is called in the order of the puts and decides whether this put carries immediate data.
  Status put(uint64_t offset, std::span<const Bytes> pieces, size_t total,
             const std::function<bool()>& wakes, uint32_t immediate);
  // Writes at most kMaxStaged bytes to another place of the peer's memory, in order with puts.
  // `*number`: for confirmed().
  Status put_into(const Target& place, Bytes bytes, uint64_t* number);
  // Polls, and returns whether the peer's adapter has confirmed the write. Also returns true after
  // an error and after stop().
  bool confirmed(uint64_t number);
  // Posts an empty write with immediate data. `before` is called in the order of the puts.
  Status signal(uint32_t immediate, const std::function<void()>& before);

  // Polls for completions. Returns true if everything posted up to the last signal() is confirmed,
  // or after stop().
  bool poll();
  void stop();
  // Stops, and returns when no thread uses the queue pair any more.
  void quiesce();

 private:
  static constexpr size_t kStagingBytes = 1u << 20;
  static constexpr size_t kMaxStaged = kStagingBytes / 4;

  struct Entry {
    ibv_send_wr request;
    ibv_sge piece;
    alignas(8) std::byte data[kInlineBytes];
  };

  Status add_put(MutexLock& lock, uint64_t offset, std::span<const Bytes> pieces, size_t total,
                 const std::function<bool()>& wakes, uint32_t immediate)
      RCUDA_REQUIRES(mutex_, lock);
  // kNotWithinAPut: also waits while another put has added only some of its requests.
  enum class Turn { kNotWithinAPut, kAnytime };
  Status wait_for_room(MutexLock& lock, size_t staged_bytes, Turn turn)
      RCUDA_REQUIRES(mutex_, lock);
  std::byte* stage(size_t bytes) RCUDA_REQUIRES(mutex_);
  Entry& add(const Target& at, uint32_t bytes) RCUDA_REQUIRES(mutex_);
  std::byte* room_in(Entry& entry) RCUDA_REQUIRES(mutex_);
  void finish(Entry& entry, bool force_signal) RCUDA_REQUIRES(mutex_);
  Status post(MutexLock& lock) RCUDA_REQUIRES(mutex_, lock);
  void poll_locked() RCUDA_REQUIRES(mutex_);

  LiveCounters& counters_;
  const Loss::Note on_error_;
  Mapping staging_;
  Mr staging_mr_;
  ibv_qp* qp_ = nullptr;
  ibv_cq* cq_ = nullptr;
  uint32_t inline_bytes_ = 0;
  Target window_;

  Mutex mutex_;
  std::vector<Entry> gathered_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Entry> posting_;  // used only by the thread that set busy_
  bool busy_ RCUDA_GUARDED_BY(mutex_) = false;
  // A put of several requests is being added; other puts wait.
  bool splitting_ RCUDA_GUARDED_BY(mutex_) = false;
  bool stopped_ RCUDA_GUARDED_BY(mutex_) = false;
  // The strongest sign of a failure so far, which error_ describes.
  Loss::Sign sign_ RCUDA_GUARDED_BY(mutex_) = Loss::Sign::kNone;
  std::string error_ RCUDA_GUARDED_BY(mutex_);
  uint64_t added_ RCUDA_GUARDED_BY(mutex_) = 0;      // work requests so far
  uint64_t confirmed_ RCUDA_GUARDED_BY(mutex_) = 0;  // of these, confirmed by a completion
  uint64_t unsignalled_ RCUDA_GUARDED_BY(mutex_) = 0;
  // Bytes staged since the start, including the ends of the ring that were skipped.
  uint64_t staged_ RCUDA_GUARDED_BY(mutex_) = 0;
  uint64_t freed_ RCUDA_GUARDED_BY(mutex_) = 0;
  uint64_t staged_at_signal_ RCUDA_GUARDED_BY(mutex_) = 0;
  uint64_t last_signal_ RCUDA_GUARDED_BY(mutex_) = 0;  // `added_` after the last signal()
  // Element n % kDepth is the value of `staged_` when work request n was added.
  uint64_t staged_by_[kDepth] RCUDA_GUARDED_BY(mutex_) = {};
};

}  // namespace rcuda::transport::verbs
