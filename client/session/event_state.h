// Tracks whether the latest record of an event is done.
//
// A record has a position in the timeline of its stream (timeline.h). After a wait for the stream,
// or for a later event in it, a query of this event therefore needs no round trip. Otherwise the
// client asks the worker. If the event is unfinished, the client also sends kWatchEvent with a
// completion word, so that the next query is only a load. A mark in the stream cannot replace this
// command: the mark would come after later work in the stream, which may never end.
//
// Records made by graphs, by other processes and by a launch's attributes are known only to the
// worker. If an event may have such records, each query asks the worker.
//
// Threads: any. A thread in found_pending() holds the event's lock until the command ring has room.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <cuda.h>

#include "client/session/pending_answer.h"
#include "client/session/route.h"
#include "client/session/timeline.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class EventState {
 public:
  // The position of a record in the timeline of its stream. If `timeline` is null, only the worker
  // knows the position.
  struct Place {
    std::shared_ptr<Timeline> timeline;
    uint64_t position = 0;
    uint64_t command = 0;  // the number of the record's command (SentCommand)
  };

  // `route`: the event's worker and context. `event`: its id in the worker.
  EventState(const Route& route, wire::ObjectId event) : route_(route), event_(event) {}
  ~EventState();  // releases its completion word
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;

  // Exists while a record is being sent. During that time, and after two threads have recorded the
  // event at once, only the worker knows which record is the latest.
  class Recording {
   public:
    explicit Recording(EventState& state);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    // Call it after the record was sent. Sets the record's position in the timeline, and the number
    // of its command (SentCommand).
    void is_at(Timeline& timeline, uint64_t position, uint64_t command);
    // The record was refused or not sent: the previous record stays the latest.
    void failed();

   private:
    EventState& state_;
    uint64_t record_;
    Place earlier_;
    Place place_;
  };

  // Called when the event may get records that only the worker knows. From now on, each query asks
  // the worker.
  void leave_to_worker();

  // Whether the latest record is done. kUnknown: ask the worker. kDone with an error in *result:
  // the event's work has failed. *record: the number of the record, for found_pending(),
  // found_done() and note_fetched(); 0 for kPending, and for a record that is fetched.
  Progress progress(uint64_t* record, CUresult* result);
  // Call it if the worker answered that the record is not done. `news`: News::count() when the
  // query was sent. Asks the worker to report the end of the record. The report only saves round
  // trips: it may never come if the event is destroyed or recorded again first.
  void found_pending(uint64_t record, uint64_t news);
  // Call it if the worker answered that the record is done.
  void found_done(uint64_t record);
  // Whether the host has seen what the GPU wrote to mirrored memory before the latest record.
  // note_fetched(): call it after a fetch that has brought all writes before the record.
  bool is_fetched() const { return fetched_.load(std::memory_order_acquire); }
  void note_fetched(uint64_t record);
  // Asks the worker whether the latest record is done; CUDA_ERROR_NOT_READY: not yet. Blocks while
  // the command ring is full and until the worker has executed the record, but not until the record
  // is done. `place`: from place(), with a timeline.
  CUresult query(const Place& place);
  // Blocks until the record that is the latest at the time of the call is done. Later records of
  // other threads do not matter.
  CUresult wait();
  // Returns the place of the latest record. Its timeline is null if only the worker knows the
  // place.
  Place place();

 private:
  Session& session() const { return *route_.session; }
  void set_done() RCUDA_REQUIRES(mutex_);
  void forget_done() RCUDA_REQUIRES(mutex_);
  void release_word() RCUDA_REQUIRES(mutex_);

  const Route route_;
  const wire::ObjectId event_;
  Mutex mutex_;
  uint64_t record_ RCUDA_GUARDED_BY(mutex_) = 0;  // grows before and after each record is sent
  bool left_to_worker_ RCUDA_GUARDED_BY(mutex_) = false;
  // Whether the record with the number record_ is done. Stays false if left_to_worker_ is true.
  bool done_ RCUDA_GUARDED_BY(mutex_) = false;
  std::atomic<bool> fetched_{false};      // see is_fetched(); true only if done_ is true
  Place place_ RCUDA_GUARDED_BY(mutex_);  // the position of the latest record

  std::optional<Word> word_ RCUDA_GUARDED_BY(mutex_);
  // The last kWatchEvent asked the worker to write word_ at the end of the record with this number.
  uint64_t watched_ RCUDA_GUARDED_BY(mutex_) = 0;
  PendingAnswer pending_;  // about the record with the number record_
};

}  // namespace rcuda::client
