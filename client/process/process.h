// Process: the state of the client library in this process: the devices, their sessions and primary
// contexts, and the registry of all allocations.
//
// The first CUDA call creates the object. initialize() reads the environment and connects to every
// server, once; its result is the result of cuInit. In a child that was forked during initialize()
// or after its success, every call returns CUDA_ERROR_NOT_INITIALIZED, as with a local driver.
//
// At the end of the process, the sessions end at the point where a local driver (580) ends. Exit
// handlers that were registered after cuInit run before this point, so they may use CUDA. Handlers
// that were registered before cuInit run after this point, and their calls return
// CUDA_ERROR_DEINITIALIZED. The same holds for the destructors of global objects, by the time of
// their construction. Threads: any. Devices and sessions do not change after initialisation.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/stream.h"
#include "client/process/peers.h"
#include "client/process/registry.h"
#include "client/session/session.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {

struct Device {
  Session* session = nullptr;
  uint32_t ordinal = 0;  // the worker's number of the device
  wire::DeviceInfo info;
  Context* primary = nullptr;  // the device's primary context; never null
  Mutex mutex;
  uint32_t primary_references RCUDA_GUARDED_BY(mutex) = 0;
  unsigned primary_flags RCUDA_GUARDED_BY(mutex) = 0;
  // The flags that the driver adds to the application's flags; -1: not yet known.
  std::atomic<int> implied_flags{-1};
  // The result of creating a new primary context in the worker after the previous context ended.
  CUresult renewed RCUDA_GUARDED_BY(mutex) = CUDA_SUCCESS;

  // Returns the attribute's value from the worker; 0 for attributes that the worker did not send.
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
  // Returns the client's ordinal of a worker's device; CU_DEVICE_INVALID if the worker has no such
  // device.
  uint32_t ordinal_of(const Session& session, uint32_t worker_ordinal) const;
  // Returns the session that has the address in its windows, or null for host memory.
  Session* session_of_address(CUdeviceptr address) const;
  Registry& memory() { return memory_; }
  Peers& peers() { return peers_; }
  // Returns the driver version that this library reports: the version of the oldest driver of all
  // servers, or of cuda.h if cuda.h is older. Connects if no call has tried to connect.
  int driver_version();
  // Whether the worker of any session lacks the command. False until the sessions are connected.
  static bool lacks_command(uint16_t opcode);

  void fork_child() noexcept;

 private:
  Process() = default;
  Status connect();
  Status try_to_connect();  // connect(); returns exceptions as errors
  int oldest_driver() const;
  void end();  // at process exit
  // Gives the device another PCI domain if another device of the process has the same PCI address.
  void tell_apart(Device* device) const;

  mutable Mutex mutex_;
  std::atomic<bool> tried_{false};
  std::atomic<bool> connecting_{false};
  // The result of check() outside of host functions.
  std::atomic<CUresult> state_{CUDA_ERROR_NOT_INITIALIZED};
  // True if this process was forked from a process that had sessions or was connecting.
  std::atomic<bool> forked_{false};
  CUresult init_result_ RCUDA_GUARDED_BY(mutex_) = CUDA_ERROR_NOT_INITIALIZED;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<std::unique_ptr<Device>> devices_;
  Registry memory_;
  Peers peers_;
};

// Returns the owner of objects that are created while `context` is current: the context itself, or
// for a green context its device's primary context.
inline Context& owning_context(Context& context) {
  return context.green ? *Process::get().device(static_cast<CUdevice>(context.device))->primary
                       : context;
}

// The first step of an entry point: checks the process, and finds the object of a handle.
// `if_none`: the result if the handle is not a live object of this type; by default, the result
// that graph functions return.
template <typename T>
CUresult resolve_object(const void* handle, T** object,
                        CUresult if_none = CUDA_ERROR_INVALID_VALUE) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  *object = find<T>(handle);
  return *object ? CUDA_SUCCESS : if_none;
}

// Like resolve_object(), for the ordinal of a device.
inline CUresult find_device(CUdevice ordinal, Device** device) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  *device = Process::get().device(ordinal);
  return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// These functions access the calling thread's stack of current contexts. Another thread may destroy
// a context in the stack.
Ref<Context> current_context();
void set_current_context(Context* context);
void push_context(Context* context);
Ref<Context> pop_context();

}  // namespace rcuda::client
