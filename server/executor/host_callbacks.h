// HostCallbacks: host functions of the application, run by its client when a stream reaches them.
//
// The driver calls a trampoline on a thread of its own. That publishes a HostCallbackEvent and
// waits, holding the stream, until the client has run the function and written the ack word, or
// until the Link broke: then the stream goes on, for nobody will look at its results. launch() and
// make() run on the executor thread; run() on the driver's threads, at any time until the driver is
// shut down.
//
// What a graph may run any number of times is a ClientResource, which the graph owns
// (graph_keeper.h): when its last owner is gone, on whatever thread, the client is told.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"
#include "server/executor/dispatch.h"

namespace rcuda::server {

class EventSink;
struct StreamRef;

// Where releases are told; outlived by resources that the driver holds on to.
struct ReleaseSink {
  std::mutex mutex;
  EventSink* events = nullptr;  // null once the session is over
};

// Something that the client keeps for graphs, by its number there: a host function, memory that
// stands for pageable memory, a user object.
class ClientResource {
 public:
  ClientResource(std::shared_ptr<ReleaseSink> sink, uint64_t id)
      : sink_(std::move(sink)), id_(id) {}
  ~ClientResource();
  ClientResource(const ClientResource&) = delete;
  ClientResource& operator=(const ClientResource&) = delete;
  uint64_t id() const { return id_; }

 private:
  const std::shared_ptr<ReleaseSink> sink_;
  const uint64_t id_;
};

class HostCallbacks {
 public:
  explicit HostCallbacks(Executor& executor);
  ~HostCallbacks();

  CUresult launch(const StreamRef& stream, uint64_t callback, bool is_stream_callback);

  std::shared_ptr<ClientResource> make_resource(uint64_t id);
  // A host function for a graph's node. Whoever adds the node takes what it has to keep.
  HostFunction make(uint64_t callback);
  std::shared_ptr<void> take(const void* argument);
  // The client's number of a function that make() made; 0 for anything else.
  static uint64_t number_of(CUhostFn function, const void* argument);

  // Has the client run a callback of its own, and waits for it. Driver's threads.
  void run_internal(uint64_t callback) { call(callback, CUDA_SUCCESS, false); }

 private:
  struct Function {
    HostCallbacks* owner;
    std::shared_ptr<ClientResource> resource;
  };
  struct Once {
    HostCallbacks* owner;
    uint64_t callback;
  };

  static void CUDA_CB run_kept(void* argument);
  static void CUDA_CB run_once(void* argument);
  static void CUDA_CB run_stream_callback(CUstream stream, CUresult status, void* argument);
  // A function of the application's, which sees what is mirrored.
  void run(uint64_t callback, CUresult status);
  void call(uint64_t callback, CUresult status, bool mirrored);
  uint32_t take_slot();
  void return_slot(uint32_t slot);

  Executor& executor_;
  const std::shared_ptr<ReleaseSink> sink_;
  std::shared_ptr<Function> made_;  // until it is taken
  std::mutex mutex_;
  std::condition_variable slot_free_;
  std::vector<uint32_t> free_slots_;
  std::array<uint64_t, wire::WorkerWindow::kCallbackSlots> sequences_{};  // last used, by slot
};

}  // namespace rcuda::server
