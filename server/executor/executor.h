// Executor: the state of one session on its worker, and the ways in which it answers.
//
// Everything runs on one thread, the executor thread (server/worker/session_loop.h), except where a
// component says otherwise (EventSink, HostCallbacks: the driver's threads call them). That thread
// never blocks in the driver: a command that needs to wait becomes a Completion.
// Ownership: the driver table, the Link, the image cache and everything in SessionResources outlive
// the Executor. What the client created belongs to the process and ends with it: a worker serves
// one session. Errors are CUresults, because they are the application's answers; a malformed
// command is told apart by HandlerResult::malformed and ends the session.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/blobs.h"
#include "server/executor/completion_words.h"
#include "server/executor/completions.h"
#include "server/executor/dispatch.h"
#include "server/executor/event_sink.h"
#include "server/executor/object_table.h"
#include "server/peer/peer_settings.h"

namespace rcuda::server {

class GpuDirect;
class GraphCopies;
class GraphKeeper;
class HostCallbacks;
class HostMemory;
class Mirrors;
class ImageCache;
class ImageStore;
class OutputCapture;
class PeerHub;
class ShadowCopies;
class SharedAllocations;

// One of the session's devices, in the client's order.
struct SessionDevice {
  CUdevice device = 0;
  CUcontext primary = nullptr;
};

struct AddressRange {
  uint64_t begin = 0, end = 0;
};

// What a worker brings to a session.
struct SessionResources {
  const api::DriverTable* driver = nullptr;
  transport::Link* link = nullptr;
  std::vector<SessionDevice> devices;
  // Page-locked memory: the client's staging region, and a place for replies that the GPU writes,
  // as large as all reply slots together.
  std::byte* staging = nullptr;
  size_t staging_bytes = 0;
  int staging_file = -1;  // a memfd behind the staging region; -1: none
  std::byte* reply_memory = nullptr;
  size_t pinned_bytes = 0;  // from `staging`: what was registered in one piece
  ImageCache* images = nullptr;
  OutputCapture* output = nullptr;  // null: device output is left where the driver puts it
  // The client lives in this process (tests): its memory needs no mapping, only registering.
  bool shared_address_space = false;
  bool allow_faults = false;
  bool gpudirect = true;  // where the Link has it and a probe proves it
  // Of one device, with work under way while one of them is held for another worker; 0: any number.
  size_t most_streams = 0;
  PeerSettings peers;
  // What this process keeps inaccessible: client memory may be mapped over it.
  std::vector<AddressRange> closed;
};

inline constexpr size_t kReplyMemoryBytes =
    wire::ClientWindow::kEventRing - wire::ClientWindow::kSmallReplies;

// What a destroyed stream still had to do. The driver carries it out, and who waits for the context
// waits for it, too.
struct Departed {
  bool done = false;
  std::vector<WhenDone> waiters;
};

// What peer copies were given and was found to be device memory.
struct CheckedMemory {
  struct Range {
    uint64_t first = 1, last = 0;  // addresses; none
  };
  uint64_t at = 0;  // Executor::other_work(): no other command may have freed it since
  std::array<Range, 4> ranges{};
  size_t next = 0;
};

struct ContextState {
  wire::ObjectId id = 0;
  CUcontext handle = nullptr;
  CUdevice device = 0;
  std::vector<CUevent> free_events;    // without timing
  std::vector<CUstream> free_streams;  // non-blocking ones, for moved watches
  CUstream idle_stream = nullptr;      // never used: synchronising it flushes device printf
  CUstream fetch_stream = nullptr;     // for mirrors.h; waits for no other
  Object fetch_uses;
  Object legacy_stream;  // handle stays null; for its use counts
  uint64_t idle_at = 0;  // Executor::work_ when everything was last known to be done
  std::vector<std::shared_ptr<Departed>> departed;
};

// A stream as a command names it.
struct StreamRef {
  CUstream handle = nullptr;  // null: the legacy default stream of `context`
  ContextState* context = nullptr;
  Object* object = nullptr;
  wire::ObjectId id = 0;
  uint64_t key = 0;  // tells streams apart, also those that got a destroyed one's handle
};

// Keys of streams that have no id: legacy default streams, and those that serve mirrors. Those of
// created streams are counted from 1.
inline constexpr uint64_t kLegacyKey = 1ull << 63;
inline constexpr uint64_t kFetchKey = 1ull << 62;

// Where a reply goes; taken from a validated CommandHeader.
struct ReplyTarget {
  uint32_t call = 0;
  uint32_t slot = 0;
  uint32_t slot_bytes = 0;
  size_t capacity() const { return slot_bytes - sizeof(uint64_t) - sizeof(wire::ReplyHeader); }
};

class Executor {
 public:
  explicit Executor(const SessionResources& resources);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const api::DriverTable& driver() const { return *resources_.driver; }
  transport::Link& link() { return *resources_.link; }
  const SessionResources& resources() const { return resources_; }
  ObjectTable& objects(wire::Kind kind) { return objects_[static_cast<size_t>(kind)]; }
  Completions& completions() { return completions_; }
  EventSink& events() { return events_; }
  HostCallbacks& host_callbacks() { return *host_callbacks_; }
  GraphKeeper& graph_keeper() { return *graph_keeper_; }
  GraphCopies& graph_copies() { return *graph_copies_; }
  HostMemory& host_memory() { return *host_memory_; }
  GpuDirect& gpu_direct() { return *gpu_direct_; }
  ShadowCopies& shadow_copies() { return *shadow_copies_; }
  Mirrors& mirrors() { return *mirrors_; }
  SharedAllocations& shared_allocations() { return *shared_allocations_; }
  ImageStore& images() { return *images_; }
  Blobs& blobs() { return blobs_; }
  PeerHub& peers() { return *peers_; }

  // From any thread: `job` runs on the executor thread, soon and between two commands.
  void post(std::function<void()> job);
  bool run_posted();  // true if there was anything
  bool has_posted() const { return has_posted_.load(); }

  // Contexts. The primary ones exist from the start, others when a handler bound them.
  ContextState* find_context(wire::ObjectId id);
  ContextState* find_context(CUcontext handle);
  // Makes it the thread's current one. 0 leaves the thread as it is.
  CUresult make_current(wire::ObjectId id);
  ContextState* current_context() { return current_; }
  // A driver call may have changed the thread's current context.
  void forget_current() { current_ = nullptr; }

  // The stream of a command; 0 is the legacy default stream of the current context.
  CUresult find_stream(wire::ObjectId id, StreamRef* stream);
  // Whether all that was queued in the context, in whatever stream, is known to be done: the driver
  // is asked, nothing is recorded. False where that would ask for too much.
  bool known_idle(ContextState& context);
  bool known_idle();  // in all contexts
  // Something may have been queued in some stream: what was known to be idle is not any more.
  void note_work() { ++work_; }
  // So has a peer copy that holds the stream; whether the last thing before was one as well, in the
  // same stream.
  bool note_hold(uint64_t stream_key) {
    const bool follows = held_at_ == work_ && held_key_ == stream_key;
    held_at_ = ++work_;
    held_key_ = stream_key;
    ++holds_;
    return follows;
  }
  // Stays the same while there is nothing to do but peer copies.
  uint64_t other_work() const { return work_ - holds_; }
  // How many streams of the device have work that is not known to be done, besides those with which
  // something waits for events of the program. `ask`: the driver is asked what it has done.
  size_t busy_streams(CUdevice device, bool ask);
  // Once everything queued in the context so far is done, in whatever stream; with the first error.
  // A context with a stream in capture is refused at once, as CUDA refuses to synchronise it.
  void when_idle(ContextState& context, WhenDone when_done);
  // The stream is about to be destroyed.
  void stream_departs(CUstream stream);
  // Objects behind dispatch.h; for streams and events they also keep account of uses.
  CUresult lookup(wire::Kind kind, wire::ObjectId id, void** handle);
  bool bind(wire::Kind kind, wire::ObjectId id, void* handle);
  void unbind(wire::Kind kind, wire::ObjectId id);
  // A context is about to be destroyed or reset: what is pending in it comes due, and the names of
  // its streams, events, modules and functions go.
  void forget_objects(ContextState& context);
  // cuDevicePrimaryCtxReset, after which the context is alive again for the session.
  CUresult reset_primary(CUdevice device);

  // Answers. All go out in order; a broken Link is found by the session loop, not here. A sticky
  // error is latched before it is told, so that the client's next post() finds it as well.
  // `wake`: kYes if no thread of the client is likely to wait.
  void signal(WordSignal signal, CUresult result, transport::Wake wake = transport::Wake::kNow);
  void reply(const ReplyTarget& target, CUresult result, std::span<const std::byte> body);
  // A posted command failed, or work failed asynchronously. A sticky error is never overwritten.
  // From any thread: the engine of peer copies latches a stream's error before it lets it go on.
  void latch(CUresult error);
  // Publishes what kernels printed so far. Call when work that may have printed is done.
  void flush_output(ContextState& context);
  void enable_output() { may_print_ = true; }

  uint64_t commands = 0;  // for the session's last log line
  uint64_t copied_bytes = 0;
  CheckedMemory checked_memory;

 private:
  void publish_error(CUresult error);
  // All streams of a context that have work which is not known to be done.
  std::vector<StreamRef> busy_streams(ContextState& context);
  bool any_departed(ContextState& context);
  // What cuStreamQuery says of a stream other than the legacy one; CUDA_ERROR_NOT_READY: it has
  // something to do. One that captures is not asked, which is an error here.
  CUresult query(const StreamRef& stream);

  SessionResources resources_;
  std::array<ObjectTable, static_cast<size_t>(wire::Kind::kCount)> objects_;
  std::vector<ContextState> primaries_;
  std::unordered_map<wire::ObjectId, std::unique_ptr<ContextState>> contexts_;
  ContextState* current_ = nullptr;
  uint64_t uses_ = 0;
  uint64_t work_ = 1;     // how often something may have been queued
  uint64_t held_at_ = 0;  // work_ when that was a peer copy that holds a stream, and which
  uint64_t held_key_ = 0;
  uint64_t holds_ = 0;  // how many of these there were
  uint64_t next_key_ = 1;
  uint64_t errors_ = 0;
  CompletionWords words_;    // the engine's threads signal as well
  std::mutex errors_mutex_;  // errors_, sticky_
  CUresult sticky_ = CUDA_SUCCESS;
  bool may_print_ = false;
  EventSink events_;
  Completions completions_;
  std::unique_ptr<HostCallbacks> host_callbacks_;
  std::unique_ptr<GraphKeeper> graph_keeper_;
  std::unique_ptr<HostMemory> host_memory_;
  std::unique_ptr<Mirrors> mirrors_;
  std::unique_ptr<ShadowCopies> shadow_copies_;
  std::unique_ptr<GpuDirect> gpu_direct_;
  std::unique_ptr<GraphCopies> graph_copies_;
  std::unique_ptr<SharedAllocations> shared_allocations_;
  std::unique_ptr<ImageStore> images_;
  Blobs blobs_;
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_
  std::atomic<bool> has_posted_{false};
  std::unique_ptr<PeerHub> peers_;  // first to go: its threads post and latch
};

}  // namespace rcuda::server
