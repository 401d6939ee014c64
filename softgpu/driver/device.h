// Device: one virtual GPU, and the list of them.
//
// Devices are made by cuInit from SOFTGPU_DEVICES, SOFTGPU_MEMORY and SOFTGPU_COMPUTE_CAPABILITY
// and live as long as the process; references to them stay valid. A device owns what its contexts
// share: the account of its memory, the map of addresses its kernels may touch, its primary context
// and its copy engines. Any thread; only CopyEngine::transfer blocks.
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

inline constexpr int kMaxDevices = 16;

// One direction of a device's link, when the link model is on: transfers queue for it and take
// latency + size / bandwidth. Off (bandwidth 0) it costs nothing.
class CopyEngine {
 public:
  CopyEngine(double bytes_per_ns, int64_t latency_ns)
      : bytes_per_ns_(bytes_per_ns), latency_ns_(latency_ns) {}
  bool paced() const { return bytes_per_ns_ > 0 || latency_ns_ > 0; }
  struct Slot {
    std::chrono::steady_clock::time_point begin, end;  // when the transfer occupies the engine
    std::chrono::steady_clock::time_point done;        // before that it must not be seen as done
  };
  // Books the next free slot for `bytes`.
  Slot book(size_t bytes);
  // What is left of a slot whose transfer was given up.
  void give_back(const Slot& slot);

 private:
  const double bytes_per_ns_;
  const int64_t latency_ns_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point free_at_{};
};

class Device {
 public:
  explicit Device(int ordinal);
  ~Device();

  int ordinal() const { return ordinal_; }
  const char* name() const;
  CUuuid uuid() const { return uuid_; }
  // nullopt for an attribute that does not exist.
  std::optional<int> attribute(CUdevice_attribute attribute) const;
  int multiprocessors() const;
  uint32_t compute_capability() const { return compute_capability_; }  // 90 for 9.0

  // Kernels of any context of this device may touch these addresses: its own allocations, host
  // memory that is pinned or managed, and peers' memory where access is enabled.
  exec::MemoryMap& memory() { return memory_; }

  size_t total_bytes() const { return total_bytes_; }
  size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  // Takes `bytes` from the account; false when less is left.
  bool charge(size_t bytes);
  void refund(size_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // The primary context exists from the start (so that its handle never changes) but is alive only
  // between the first retain and the last release.
  Context& primary() { return *primary_; }
  std::shared_ptr<Context> primary_shared() { return primary_; }

  CopyEngine& host_to_device() { return host_to_device_; }
  CopyEngine& device_to_host() { return device_to_host_; }
  CopyEngine& peer_out() { return peer_out_; }
  Connections* connections() { return connections_.get(); }  // null: each stream has its own

 private:
  const int ordinal_;
  const uint32_t compute_capability_;
  const size_t total_bytes_;
  CUuuid uuid_{};
  std::atomic<size_t> used_bytes_{0};
  exec::MemoryMap memory_;
  CopyEngine host_to_device_, device_to_host_, peer_out_;
  std::unique_ptr<Connections> connections_;
  std::shared_ptr<Context> primary_;
};

// CUDA_SUCCESS once cuInit has succeeded in this process, else CUDA_ERROR_NOT_INITIALIZED: also in
// the child of a fork, where a driver's state is unusable. CUDA_ERROR_DEINITIALIZED at the end of
// the process, once exit handlers registered before cuInit have their turn.
// CUDA_ERROR_NOT_PERMITTED inside a host function.
CUresult check_initialized();
CUresult initialize();  // cuInit; any number of times

int device_count();
// nullptr for an ordinal out of range, or before initialize().
Device* device_at(CUdevice ordinal);
// The device another process named; nullptr when this process does not have it.
Device* device_with_uuid(const CUuuid& uuid);

}  // namespace softgpu::driver
