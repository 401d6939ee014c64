// HostCallbacks: host functions of the application. The client runs a function when a stream
// reaches it.
//
// The driver calls all host functions on one thread. Each function of the application is called
// through a trampoline. For a function of a stream, the trampoline publishes a HostCallbackEvent
// and returns, and the stream waits at a gate (arrival_gates.h). The thread of this object opens
// the gate when the client has run the function and written the ack word. So other host functions,
// including those of the worker's own copies, run while an application's function is running. The
// thread handles one function at a time, as the driver does. It also publishes the event itself in
// three cases: memory is mirrored, so its contents must be exchanged first; no ack word is free; or
// an earlier function is not published yet. In graphs, and if the stream cannot wait at a gate or
// the thread cannot be started, the trampoline itself waits for the ack word. If the Link breaks,
// the stream continues, because no client is left to see its results.
// A function that a graph may run any number of times is a ClientResource, which the graph owns
// (graph_keeper.h).
// Threads: launch(), make() and take() on the executor thread, run_internal() on the driver's
// threads, at any time until the driver is shut down. Blocking: run_internal(), until the client
// answers; the destructor, until the functions in reached_ have run. Errors: those of the driver.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/client_resources.h"
#include "server/executor/answers/event_sink.h"
#include "server/executor/answers/handler.h"
#include "server/executor/graphs/graph_keeper.h"
#include "server/executor/host_memory/arrival_gates.h"
#include "server/executor/mirrors/mirrors.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class HostCallbacks {
 public:
  // All outlive this object.
  HostCallbacks(const api::DriverTable& driver, transport::Link& link, EventSink& events,
                ClientResources& resources, GraphKeeper& graph_keeper, Mirrors& mirrors,
                std::shared_ptr<ArrivalGates> gates);
  ~HostCallbacks();
  HostCallbacks(const HostCallbacks&) = delete;
  HostCallbacks& operator=(const HostCallbacks&) = delete;

  CUresult launch(const SessionStream& stream, uint64_t callback, bool is_stream_callback);

  // Makes a host function for a graph's host node. take() passes the ownership of the function's
  // data to the caller. It returns null if `argument` does not belong to the function made last.
  HostFunction make(uint64_t callback);
  std::shared_ptr<void> take(const void* argument);
  // The client's number of a function that make() made; 0 for other functions.
  static uint64_t number_of(CUhostFn function, const void* argument);

  // Makes the client run one of its internal callbacks (for a stand-in, client/copy/stand_in.h).
  // Waits until the callback has run.
  void run_internal(uint64_t callback) { call(callback, CUDA_SUCCESS, 0); }

 private:
  // The word that the client writes after it has run a function.
  struct Ack {
    uint32_t slot = 0;
    uint64_t sequence = 0;  // 0: the event could not be sent, because the Link is broken
  };
  // A function of a graph, which may run any number of times.
  struct Function {
    HostCallbacks* owner;
    std::shared_ptr<ClientResource> resource;
  };
  // A function of a stream, which runs once.
  struct Once {
    HostCallbacks* owner;
    uint64_t callback;
    std::shared_ptr<ArrivalGates::Gate> gate{};  // null: the trampoline waits
    CUresult status = CUDA_SUCCESS;
    bool is_published = false;
    Ack ack{};  // valid if is_published
  };

  static void CUDA_CB run_kept(void* argument);
  static void CUDA_CB run_once(void* argument);
  static void CUDA_CB run_stream_callback(CUstream stream, CUresult status, void* argument);
  CUresult queue(CUstream stream, std::unique_ptr<Once> once, bool is_stream_callback);
  // Called when the stream of `once` has reached the function. The stream waits at the gate.
  void reached(std::unique_ptr<Once> once);
  // The body of thread_.
  void run_reached();
  // Runs a function of the application, with the contents of mirrored memory exchanged around it.
  void run(uint64_t callback, CUresult status);
  void call(uint64_t callback, CUresult status, uint64_t loan);
  Ack publish(uint32_t slot, uint64_t callback, CUresult status, uint64_t loan);
  // Waits for the ack, then frees its slot.
  void await(const Ack& ack);
  uint32_t take_slot();
  uint32_t take_slot_locked() RCUDA_REQUIRES(mutex_);

  const api::DriverTable& driver_;
  transport::Link& link_;
  EventSink& events_;
  ClientResources& resources_;
  GraphKeeper& graph_keeper_;
  Mirrors& mirrors_;
  const std::shared_ptr<ArrivalGates> gates_;
  std::shared_ptr<Function> made_;  // by the last make(), until take()
  Mutex mutex_;
  CondVar slot_free_;
  std::vector<uint32_t> free_slots_ RCUDA_GUARDED_BY(mutex_);
  // The last sequence of each slot. Only the thread that has taken the slot uses it.
  std::array<uint64_t, wire::WorkerWindow::kCallbackSlots> sequences_{};
  std::thread thread_;  // for functions whose streams wait at gates; started by the first of them
  CondVar reached_changed_;
  // Functions whose streams have reached them, except the function that thread_ handles.
  std::deque<std::unique_ptr<Once>> reached_ RCUDA_GUARDED_BY(mutex_);
  // The number of functions, in reached_ or handled by thread_ now, whose event thread_ publishes.
  size_t unpublished_ RCUDA_GUARDED_BY(mutex_) = 0;
  bool ends_ RCUDA_GUARDED_BY(mutex_) = false;
};

}  // namespace rcuda::server
