// Device: one virtual GPU, and the list of them.
//
// cuInit makes the devices. SOFTGPU_DEVICES and SOFTGPU_MEMORY give their number and memory;
// CUDA_VISIBLE_DEVICES selects among them. Devices live as long as the process, so references to
// them stay valid. A device owns the state that its contexts share: the account of its memory, the
// map of addresses that its kernels may touch, its primary context and its copy engines. Any
// thread; only check_initialized() and initialize() block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include <cuda.h>

#include "softgpu/exec/memory_map.h"

namespace softgpu::driver {

class Connections;
class Context;
class SharedAccount;

inline constexpr int kMaxDevices = 16;

// One direction of a device's link. Transfers queue for the engine and take latency + size /
// bandwidth. With a bandwidth of 0, they take only the latency; with a latency of 0, too, the link
// is not modelled.
class CopyEngine {
 public:
  CopyEngine(double bytes_per_ns, int64_t latency_ns)
      : bytes_per_ns_(bytes_per_ns), latency_ns_(latency_ns) {}
  bool paced() const { return bytes_per_ns_ > 0 || latency_ns_ > 0; }
  struct Slot {
    // The transfer occupies the engine from `begin` to `end`.
    std::chrono::steady_clock::time_point begin, end;
    std::chrono::steady_clock::time_point done;  // not reported as done before this
  };
  // Books the next free slot for `bytes`.
  Slot book(size_t bytes);
  // Makes the remaining time of a slot free again, because its transfer was abandoned.
  void give_back(const Slot& slot);

 private:
  const double bytes_per_ns_;
  const int64_t latency_ns_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_{};
};

class Device {
 public:
  // `number`: the device's number on the machine, independent of CUDA_VISIBLE_DEVICES.
  Device(int ordinal, int number);
  ~Device();

  int ordinal() const { return ordinal_; }
  int number() const { return number_; }
  const char* name() const;
  CUuuid uuid() const { return uuid_; }
  // nullopt for an attribute that does not exist.
  std::optional<int> attribute(CUdevice_attribute attribute) const;
  int multiprocessors() const;

  // The addresses that kernels of any context of this device may touch: its own allocations, pinned
  // or managed host memory, and peers' memory with access enabled.
  exec::MemoryMap& memory() { return memory_; }

  size_t total_bytes() const { return total_bytes_; }
  // The bytes in use by this process, or by all processes that share the device's memory
  // (shared_account.h).
  size_t used_bytes() const;
  // Takes `bytes` from the account; false if less is left.
  bool charge(size_t bytes);
  void refund(size_t bytes);
  // leave() removes the memory of this process from the shared account. come_back() adds it to the
  // account of the device with the number `place`; false if that device lacks free memory.
  void leave();
  bool come_back(int place);

  // The primary context always exists, so its handle never changes. It is alive only between the
  // first retain and the last release.
  Context& primary() { return *primary_; }
  std::shared_ptr<Context> primary_shared() { return primary_; }

  CopyEngine& host_to_device() { return host_to_device_; }
  CopyEngine& device_to_host() { return device_to_host_; }
  CopyEngine& peer_out() { return peer_out_; }
  Connections* connections() { return connections_.get(); }  // null: each stream has its own queue

 private:
  const int ordinal_, number_;
  const size_t total_bytes_;
  CUuuid uuid_{};
  std::atomic<size_t> used_bytes_{0};
  // The number of the device whose account is charged. A restore to another GPU changes it.
  std::atomic<int> place_;
  exec::MemoryMap memory_;
  CopyEngine host_to_device_, device_to_host_, peer_out_;
  std::unique_ptr<Connections> connections_;
  std::shared_ptr<Context> primary_;
};

// CUDA_SUCCESS after cuInit has succeeded in this process. CUDA_ERROR_NOT_INITIALIZED before that,
// and in a child of fork(), where a driver's state is unusable. CUDA_ERROR_DEINITIALIZED at the
// end of the process, after exit handlers registered after cuInit have run.
// CUDA_ERROR_NOT_PERMITTED inside a host function. Blocks while the process is locked
// (call_gate.h).
CUresult check_initialized();
// As check_initialized(), but never blocks.
CUresult check_initialized_without_gate();
CUresult initialize();  // cuInit; may be called again

int device_count();
// nullptr if the ordinal is out of range, or before initialize().
Device* device_at(CUdevice ordinal);
// nullptr if this process does not see the device.
Device* device_with_uuid(const CUuuid& uuid);

}  // namespace softgpu::driver
