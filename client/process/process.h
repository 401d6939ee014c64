// Process: the client library's state of this process: the pool of devices, their sessions,
// contexts, and the known facts about every allocation.
//
// Created by the first CUDA call; a process that never calls CUDA has none. initialize() reads the
// environment, connects to every server and never tries again: its result is the result of cuInit.
// After fork() every call in the child returns CUDA_ERROR_NOT_INITIALIZED, as with a local driver.
// At the end of the process, the sessions end where a local driver ends (580): exit handlers and
// global objects that are younger than cuInit run before that and may use CUDA; older ones get
// CUDA_ERROR_DEINITIALIZED. Threads: any. Devices and sessions do not change after initialisation.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/channel/session.h"
#include "client/objects/arena.h"
#include "client/objects/stream.h"
#include "client/process/peers.h"
#include "client/process/registry.h"

namespace rcuda::client {

struct Device {
  Session* session = nullptr;
  uint32_t ordinal = 0;  // the worker's number of the device
  wire::DeviceInfo info;
  Context* primary = nullptr;  // its primary context; never null
  std::mutex mutex;            // of what follows
  uint32_t primary_references = 0;
  unsigned primary_flags = 0;
  std::atomic<int> implied_flags{
      -1};  // Flags of the primary context beyond those that were set; -1: not yet known.
  // Result of making a new primary context in the worker after the last one ended.
  CUresult renewed = CUDA_SUCCESS;

  // The attribute's value from the worker; 0 for attributes that the worker did not know.
  int attribute(CUdevice_attribute which) const {
    const auto index = static_cast<size_t>(which);
    return index < info.attributes.size() ? info.attributes[index] : 0;
  }
};

class Process {
 public:
  static Process& get();

  CUresult initialize();  // cuInit
  // Returns CUDA_SUCCESS after a successful initialize(), NOT_INITIALIZED before it and after
  // fork(), DEINITIALIZED at the end of the process, and NOT_PERMITTED in a host function.
  CUresult check() const;

  size_t device_count() const { return devices_.size(); }
  Device* device(CUdevice ordinal) const;  // null if there is no such device
  const std::vector<std::unique_ptr<Session>>& sessions() const { return sessions_; }
  // The client's ordinal of a worker's device; CU_DEVICE_INVALID if the worker has no such device.
  uint32_t ordinal_of(const Session& session, uint32_t worker_ordinal) const;
  Session* session_of_address(CUdeviceptr address) const;  // by window; null for host memory
  Registry& memory() { return memory_; }
  Peers& peers() { return peers_; }
  // The driver version that this library reports: that of the oldest driver of all servers, or of
  // cuda.h if that is older. Connects if no call has tried to.
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
  // the result of check(), without host functions
  std::atomic<CUresult> state_{CUDA_ERROR_NOT_INITIALIZED};
  // this is a fork of a process that had sessions or was connecting
  std::atomic<bool> forked_{false};
  CUresult init_result_ = CUDA_ERROR_NOT_INITIALIZED;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Device>> devices_;
  Registry memory_;
  Peers peers_;
};

// The calling thread's stack of current contexts. Another thread may destroy a context in it.
Ref<Context> current_context();
void set_current_context(Context* context);
void push_context(Context* context);
Ref<Context> pop_context();

}  // namespace rcuda::client
