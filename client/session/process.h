// Process: the one per-process state of the client library: the pool of devices, their sessions,
// contexts, and what is known of every allocation.
//
// Made by the first CUDA call; a process that never calls CUDA has none. initialize() reads the
// environment, connects to every server and never tries again: its result is cuInit's.
// After fork() the child, like with a local driver, gets CUDA_ERROR_NOT_INITIALIZED from
// everything. At the end of the process the sessions end where a local driver takes its leave
// (580): exit handlers and global objects that are younger than cuInit run before and may use CUDA,
// what is older gets CUDA_ERROR_DEINITIALIZED. Threads: any; devices and sessions do not change
// once initialised.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/memory/registry.h"
#include "client/objects/arena.h"
#include "client/objects/stream.h"
#include "client/session/peers.h"
#include "client/session/session.h"

namespace rcuda::client {

struct Device {
  Session* session = nullptr;
  uint32_t ordinal = 0;  // the worker's number of it
  wire::DeviceInfo info;
  Context* primary = nullptr;  // its primary context, always there
  std::mutex mutex;            // of what follows
  uint32_t primary_references = 0;
  unsigned primary_flags = 0;
  std::atomic<int> implied_flags{
      -1};                          // of the primary context, whatever was set; -1: not known yet
  CUresult renewed = CUDA_SUCCESS;  // whether the worker has a new one after the last one's end

  // What the worker told of it; 0 for attributes it did not know.
  int attribute(CUdevice_attribute which) const {
    const auto index = static_cast<size_t>(which);
    return index < info.attributes.size() ? info.attributes[index] : 0;
  }
};

class Process {
 public:
  static Process& get();

  CUresult initialize();  // cuInit
  // CUDA_SUCCESS once initialize() has succeeded; NOT_INITIALIZED before and after fork,
  // DEINITIALIZED at the end of the process, and in a host function's way: NOT_PERMITTED.
  CUresult check() const;

  size_t device_count() const { return devices_.size(); }
  Device* device(CUdevice ordinal) const;  // null: no such device
  const std::vector<std::unique_ptr<Session>>& sessions() const { return sessions_; }
  // The client's ordinal of a worker's device; CU_DEVICE_INVALID for a device that it does not
  // have.
  uint32_t ordinal_of(const Session& session, uint32_t worker_ordinal) const;
  Session* session_of_address(CUdeviceptr address) const;  // by window; null: host memory
  Registry& memory() { return memory_; }
  Peers& peers() { return peers_; }
  // The version that this library has every function of: the oldest driver's of all servers, or
  // that of cuda.h where all are newer. Connects if that was not tried.
  int driver_version();

  void fork_child() noexcept;

 private:
  Process() = default;
  Status connect();
  int oldest_driver() const;
  void end();  // at process exit
  void tell_apart(Device* device) const;

  mutable std::mutex mutex_;
  std::atomic<bool> tried_{false};
  std::atomic<bool> connecting_{false};
  std::atomic<CUresult> state_{CUDA_ERROR_NOT_INITIALIZED};  // what check() says
  std::atomic<bool> forked_{false};  // from a process that had, or was about to have, sessions
  CUresult init_result_ = CUDA_ERROR_NOT_INITIALIZED;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Device>> devices_;
  Registry memory_;
  Peers peers_;
};

// The calling thread's stack of current contexts. Another thread may destroy one that is in it.
Ref<Context> current_context();
void set_current_context(Context* context);
void push_context(Context* context);
Ref<Context> pop_context();

}  // namespace rcuda::client
