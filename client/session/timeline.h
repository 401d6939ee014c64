// Timeline: how far a worker has got in one queue: a stream, or the legacy default stream of a
// context.
//
// A position counts the places that the sent commands take in the queue: usually one each, two for
// a copy that is followed by an event. `sent` is the position of the last command. `reached` is the
// last position that is known to be done; a queue works in order, so everything before it is done
// too. These things raise `reached`: a wait for the stream, the answer to a copy in the stream, a
// query that finds the stream done, the end of an event that was recorded in the stream, and a
// mark. A mark is a kSignal command in the queue: the worker writes its completion word when the
// queue has reached the mark's position.
//
// `awaited` is the last position that a wait has covered. The output of kernels up to this position
// is printed; a query or a mark does not ensure that.
//
// The positions answer these questions:
// - Is the stream done? reached >= sent.
// - Does a wait for the stream have nothing to do? awaited >= sent.
// - Is an event done? reached >= the position of its record (event_state.h).
// - Is the queue full? sent - reached against a limit: pace().
// - Is a context idle? reached >= sent in all its timelines (timelines.h).
// - Can work in the queue still write to page-locked memory of this process? HostWrite below.
//
// If `reached` does not answer a query, the client asks the worker and sends a mark, so that the
// next query is only a load. While the mark is not reached, the stream counts as busy until the
// client learns something new. For example, the client finds that another stream, which waited for
// this stream, is done. Then this stream is done too, even if the word of its mark has not arrived
// yet. News (news.h) counts what the client has learned.
//
// Pacing: a driver's queues are finite. On an H200 a stream holds 1020 launches, copies or records
// after a kernel that does not end (driver 580); the next call blocks. The worker has one thread
// for all streams, so that thread must not block. pace() makes the application's thread wait here
// instead. Two effects are not counted: a large graph takes more room than one command (81 launches
// of a graph with 100 parallel nodes fill an H200's queue), and streams beyond the eighth share
// queues.
//
// Threads: any. The session calls count() while it holds the lock that orders its commands. A
// thread that waits holds no lock of the timeline. A thread that makes a mark holds this timeline's
// lock until the command ring has room.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/session/completion_words.h"
#include "client/session/pending_answer.h"
#include "client/session/timeline_host.h"
#include "common/base/address_space.h"
#include "common/base/mutex.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

class ReachedPlace;  // reached_place.h

enum class Progress { kUnknown, kPending, kDone };

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  // Whether the legacy default stream waits for this stream. kMaybe: not known.
  enum class WithLegacy { kMaybe, kYes, kNo };

  // `stream`: 0 for the context's legacy default stream.
  Timeline(TimelineHost& host, wire::ObjectId context, wire::ObjectId stream);
  ~Timeline();  // releases its word
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  wire::ObjectId context() const { return context_; }
  wire::ObjectId stream() const { return stream_; }
  WithLegacy with_legacy() const { return with_legacy_.load(std::memory_order_relaxed); }
  void set_with_legacy(WithLegacy relation) { with_legacy_.store(relation); }

  // Counts a command that enters the ring and takes `room` places in the driver's queue. Returns
  // the command's position.
  uint64_t count(uint64_t room = 1);
  uint64_t sent() const { return sent_.load(std::memory_order_acquire); }
  bool is_level() const { return reached_.load(std::memory_order_acquire) >= sent(); }
  // Notes that everything up to `position` is done.
  void advance(uint64_t position);
  // Notes that a wait for `position` has ended: everything up to it is done, and the output of its
  // kernels is printed.
  void waited(uint64_t position);
  bool is_awaited() const { return awaited_.load(std::memory_order_acquire) >= sent(); }
  // Whether everything up to `position` is known to be done. Sends nothing.
  bool has_reached(uint64_t position);

  // Whether the queue has done everything up to `position`. kDone with an error in *result: the
  // work has failed. kUnknown: ask the worker, then call found_busy() or advance().
  Progress progress(uint64_t position, CUresult* result);
  // Call it if the worker answered that the queue is not done. `news`: News::count() when the query
  // was sent.
  void found_busy(uint64_t news);

  // Called before a command is sent. Blocks while the queue is full, unless the session is lost.
  void pace();

  // Call it before the stream is destroyed. The stream's work continues; a mark shows when the work
  // is done.
  void mark_end();
  // Call it after the stream is destroyed. Releases the word unless a mark still needs it.
  void close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }

  // Whether work of any timeline of the process may still write to page-locked memory.
  static bool host_writes_pending();
  // Whether work of any timeline of the process may still write to memory that overlaps `memory`.
  static bool may_write(AddressRange memory);
  // Whether this queue has work in progress, up to `position`, that may write to page-locked
  // memory.
  bool may_write_until(uint64_t position);

  // Notes that later work of this queue waits for a place in a stream of another server.
  void follows(std::shared_ptr<ReachedPlace> place);
  // Returns a place of follows() for which later work of this queue still waits. It is after all
  // work in progress that may write to memory that overlaps `memory`. Null if there is no such
  // place.
  std::shared_ptr<ReachedPlace> place_after_writes(AddressRange memory);

  // The last push of mirrored memory for which the queue waits. Guarded by a lock of
  // client/mirror/mirror.cpp.
  uint64_t awaited_push = 0;

 private:
  friend class HostWrite;

  struct Mark {
    uint64_t position;
    uint64_t sequence;  // the word's sequence once the position is reached
  };

  void collect() RCUDA_REQUIRES(mutex_);
  bool place_mark() RCUDA_REQUIRES(mutex_);
  void release_word() RCUDA_REQUIRES(mutex_);
  uint64_t sequence_to_wait_for() RCUDA_REQUIRES(mutex_);  // 0: pace() need not wait
  struct SentWrite {
    AddressRange memory;
    uint64_t position;
  };
  void settle_host_writes();
  void note_host_write(AddressRange memory);

  TimelineHost& host_;
  const wire::ObjectId context_, stream_;
  std::atomic<WithLegacy> with_legacy_{WithLegacy::kMaybe};

  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> reached_{0};
  std::atomic<uint64_t> awaited_{0};     // at most reached_
  std::atomic<uint64_t> pace_at_{0};     // below this position, pace() does nothing
  std::atomic<uint64_t> paced_from_{0};  // pace() ignores commands up to this position
  // Commands in progress that may write to host memory. The lock of all host writes (timeline.cpp)
  // guards these members; `writes_host_` is also read without it.
  std::vector<SentWrite> host_writes_;                   // by commands that have been sent
  std::vector<AddressRange> host_writes_begun_;          // by commands that are being sent
  std::atomic<bool> writes_host_{false};                 // whether host_writes_ has elements
  std::vector<std::shared_ptr<ReachedPlace>> followed_;  // see follows()

  // The worker's answer that the queue is not done. While it holds, commands that were sent after
  // the query are not done either, because the queue works in order.
  PendingAnswer busy_;

  std::atomic<bool> closed_{false};
  Mutex mutex_;
  std::optional<Word> word_ RCUDA_GUARDED_BY(mutex_);
  std::deque<Mark> marks_ RCUDA_GUARDED_BY(mutex_);  // marks not known to be reached, oldest first
  uint64_t failed_at_ RCUDA_GUARDED_BY(mutex_) =
      0;  // position of the last mark that was reached with an error
  CUresult failure_ RCUDA_GUARDED_BY(mutex_) = CUDA_SUCCESS;
};

// Exists while the client sends a command that may later write to page-locked memory: an
// asynchronous copy to the host, a host function, or a graph, which may contain both.
//
// Over media that do not share pages, host writes in progress decide when the source of a copy from
// page-locked memory to a device is read. If no work in progress can change the source, it is read
// early. Over TCP, the command of a small copy then contains the bytes, and the client sends the
// bytes of a larger copy together with its command. Over verbs the worker fetches the bytes as soon
// as it executes the command (wire::kSourceReady). If work in progress can change the source, the
// worker fetches the bytes when the stream reaches the copy (exception: reached_places.h).
class HostWrite {
 public:
  static constexpr AddressRange kAll{0, UINT64_MAX};
  // `memory`: the bytes that the command may write. `timeline`: the command's; if it is null, the
  // object does nothing.
  explicit HostWrite(Timeline* timeline, AddressRange memory = kAll);
  ~HostWrite();
  HostWrite(const HostWrite&) = delete;
  HostWrite& operator=(const HostWrite&) = delete;

 private:
  Timeline* const timeline_;
  const AddressRange memory_;
};

}  // namespace rcuda::client
