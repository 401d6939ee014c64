// ReachedPlaces: calls functions when a stream of this session has reached an event's record. The
// functions do work of other sessions.
//
// The client uses it for a program that copies from server A to page-locked memory and then records
// an event. A stream of server B waits for this event (cudaStreamWaitEvent), and a copy of the
// memory to B follows in this stream. When A's stream has reached the event, the client has the
// bytes and sends them to B at once. (Rejected: B reads the bytes when its stream reaches the copy.
// B then first waits for A's signal, then for a host function of its driver, then for the client's
// bytes: 280 us instead of 100 for 128 KB on an H200.)
//
// Threads: any. The functions run on one thread of this object, which starts with the first watch()
// and sleeps while no place is watched. Blocking: watch(), as Session::post(); the destructor,
// until the thread has ended. Errors: the functions are also called if the session is lost or the
// worker reports an error, because work of other sessions waits for them. The destructor does not
// call them.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "client/session/reached_place.h"
#include "client/session/route.h"
#include "common/base/mutex.h"

namespace rcuda::client {

class Session;

// An event's record in a stream.
struct EventRecord {
  Route route;  // the event's worker and context
  wire::ObjectId event = 0;
  std::shared_ptr<Timeline> timeline;  // of the stream
  uint64_t position = 0;               // in the timeline
  uint64_t command = 0;                // the number of the record's command (SentCommand)
};

class ReachedPlaces {
 public:
  explicit ReachedPlaces(Session& session) : session_(session) {}
  ~ReachedPlaces();
  ReachedPlaces(const ReachedPlaces&) = delete;
  ReachedPlaces& operator=(const ReachedPlaces&) = delete;

  // Asks the worker to report when the stream has reached the record. Returns null if no completion
  // word is free, the command cannot be sent or the thread cannot be started.
  std::shared_ptr<ReachedPlace> watch(const EventRecord& record);

 private:
  void run();
  void take_up(const std::shared_ptr<ReachedPlace>& place);
  // Removes the reached places from watched_, or all places if the session is lost. Returns them.
  std::vector<std::shared_ptr<ReachedPlace>> take_reached();

  Session& session_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ RCUDA_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<ReachedPlace>> watched_ RCUDA_GUARDED_BY(mutex_);
  std::thread thread_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
