// Context: the object behind a CUcontext; the stack of current contexts; and the checks with which
// every entry point begins.
//
// A context holds its streams (a StreamHub, made by the stream layer), its sticky error and its
// limits. Allocations and modules name their context and are released with it. A CUcontext is the
// Context's address; from_handle() checks it. A primary context keeps its handle for the life of
// the process: release and reset tear the context down, retain starts it again. Any thread.
// Blocking: synchronize(); stop(), until running kernels have stopped; start(), stop() and
// abandon(), for the time of start_cost.h.
//
// context_api.cpp defines cuCtx*, except cuCtxRecordEvent, cuCtxWaitEvent and
// cuCtxGetStreamPriorityRange, which belong to the stream layer, and cuCtxGetDevResource
// (green_api.cpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include <cuda.h>

#include "softgpu/driver/arena.h"
#include "softgpu/driver/device.h"
#include "softgpu/exec/memory_map.h"

namespace softgpu::exec {
struct Environment;
}

namespace softgpu::driver {

// The part of a context that executes work: default streams, created streams, their threads. The
// stream layer makes it when the context starts; it is destroyed when the context stops.
class StreamHub {
 public:
  virtual ~StreamHub() = default;
  // Waits until all work submitted to any stream of the context is done. Returns the context's
  // sticky error if it has one then.
  virtual CUresult synchronize() = 0;
  // Whether all work submitted so far is done.
  virtual bool idle() = 0;
  // The context is being torn down (Context::stopping() is already true): drops queued work, ends
  // running work, joins the threads and invalidates the handles of streams and events. No other
  // function is called afterwards.
  virtual void stop() = 0;
};
// Defined by the stream layer. `context` outlives the hub.
std::unique_ptr<StreamHub> make_stream_hub(Context& context);
// Defined by the stream layer. For potentially unsafe calls, such as cuMemAlloc. If a capture in
// progress forbids such calls to this thread (capture.h), invalidates the capture and returns
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. Otherwise returns CUDA_SUCCESS.
CUresult check_unsafe_call();

class Context : public std::enable_shared_from_this<Context> {
 public:
  Context(Device& device, bool primary);
  // A green context: some multiprocessors of the device, and streams. Its other objects and its
  // sticky error belong to the primary context, which must outlive it.
  Context(std::shared_ptr<Context> primary, int multiprocessors);
  ~Context();

  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
  // Any context that exists, primary contexts included; otherwise nullptr.
  static std::shared_ptr<Context> from_handle(CUcontext handle);

  Device& device() { return device_; }
  bool is_primary() const { return primary_; }
  bool is_green() const { return primary_of_green_ != nullptr; }
  // Owner of objects created while this context is current (a green context's primary context).
  Context& owner() { return is_green() ? *primary_of_green_ : *this; }
  // The number of multiprocessors that this context may use.
  int multiprocessors() const { return is_green() ? multiprocessors_ : device_.multiprocessors(); }
  uint64_t id() const { return id_.load(std::memory_order_relaxed); }
  // The usage count of cuCtxAttach and cuCtxDetach. detach() returns false for the last reference.
  void attach() { ++usage_; }
  bool detach() {
    uint32_t usage = usage_.load();
    while (usage > 1 && !usage_.compare_exchange_weak(usage, usage - 1)) {
    }
    return usage > 1;
  }
  unsigned flags() const { return flags_.load(std::memory_order_relaxed); }
  void set_flags(unsigned flags) { flags_.store(flags, std::memory_order_relaxed); }
  bool sync_memops() const { return (flags() & CU_CTX_SYNC_MEMOPS) != 0; }

  // False before a primary context's first retain and after destruction.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  // True while the context is being torn down. Passed to exec::run as its `stop`.
  const std::atomic<bool>& stopping() const { return stopping_; }

  // The first asynchronous error, which every later call returns; CUDA_SUCCESS without an error.
  CUresult sticky() const {
    const Context& holder = is_green() ? *primary_of_green_ : *this;
    return static_cast<CUresult>(holder.sticky_.load(std::memory_order_acquire));
  }
  // Makes `error` sticky and logs `why` once. Later errors are only logged, at debug level. Does
  // nothing while the context is being torn down.
  void fail(CUresult error, const std::string& why);

  // Valid while the context is alive.
  StreamHub& streams() { return *streams_; }
  CUresult synchronize() { return streams_->synchronize(); }

  // The addresses that kernels of this context may touch: the device's map.
  exec::MemoryMap& memory() { return device_.memory(); }
  // Everything exec::run needs besides the launch. Valid while the context is alive.
  exec::Environment environment();

  // CU_LIMIT_*. CUDA_ERROR_INVALID_VALUE for an unknown limit or an invalid value,
  // CUDA_ERROR_UNSUPPORTED_LIMIT for a limit that the device lacks or that cannot be set.
  CUresult limit(CUlimit limit, size_t* value) const;
  CUresult set_limit(CUlimit limit, size_t value);
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  std::atomic<CUsharedconfig> shared_config{CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE};

  // Device-side malloc and free, from a heap of CU_LIMIT_MALLOC_HEAP_SIZE.
  CUdeviceptr heap_allocate(size_t bytes);
  bool heap_release(CUdeviceptr address);

  // Begin and end the access of this context's kernels to a peer's allocations
  // (cuCtxEnablePeerAccess).
  CUresult enable_peer(Context& peer);
  CUresult disable_peer(Context& peer);
  // The devices that have a context with access to this one, as bits by ordinal.
  uint32_t peer_devices() const;

  // Starts the context: a new id, no sticky error, default limits, a new hub. False if the device
  // has no memory for it.
  bool start();
  // Stops the streams only. Used shortly before the process ends.
  void abandon();
  // Stops the streams and releases everything that belongs to the context. Idempotent.
  void stop();

 private:
  // Ends this context's access to the peer's memory. The caller has removed the peer from peers_.
  void drop_peer(Context& peer);

  Device& device_;
  const bool primary_;
  const std::shared_ptr<Context> primary_of_green_;  // null unless this is a green context
  const int multiprocessors_ = 0;                    // of a green context
  std::atomic<uint64_t> id_{0};
  std::atomic<unsigned> flags_{0};
  std::atomic<uint32_t> usage_{1};
  std::atomic<bool> alive_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> sticky_{0};
  std::unique_ptr<StreamHub> streams_;
  static constexpr int kLimits = 8;
  std::array<std::atomic<size_t>, kLimits> limits_{};
  std::array<std::atomic<int>, kMaxDevices> peer_readers_{};  // contexts with access, by device
  mutable std::mutex mutex_;                                  // guards the members below
  std::set<Context*> peers_;
  CUdeviceptr heap_address_ = 0;  // reserved when a kernel first allocates
  FreeRanges heap_free_{0};
  std::map<CUdeviceptr, size_t> heap_blocks_;
};

// The calling thread's current context, or nullptr. The context may be dead (see alive()).
Context* current_context();
std::shared_ptr<Context> current_context_shared();
// The living context of the handle; if the handle is null, the current context. Otherwise
// CUDA_ERROR_INVALID_CONTEXT or _CONTEXT_IS_DESTROYED.
CUresult find_context(CUcontext handle, std::shared_ptr<Context>* context);
// Replaces the top of the calling thread's stack, or pushes the context if the stack is empty.
// nullptr: pops the top.
void set_current_context(std::shared_ptr<Context> context);
void push_current_context(std::shared_ptr<Context> context);

// Nearly every entry point begins with this check: the driver is initialised, a context is current
// and alive, and it has no sticky error. `*context` is the current context's owner(). Otherwise
// CUDA_ERROR_NOT_INITIALIZED, _INVALID_CONTEXT, _CONTEXT_IS_DESTROYED or the sticky error;
// CUDA_ERROR_NOT_PERMITTED inside a host function.
CUresult enter(Context** context);
// Like enter(), for calls that need no context: `*context` is nullptr if no living context is
// current.
CUresult enter_anywhere(Context** context);

}  // namespace softgpu::driver
