// GpuDirect: copies between page-locked client memory and GPU memory that the adapter carries from
// one to the other, with nothing in between.
//
// Only where it is proven: for each device of the session a pattern goes through the adapter into
// GPU memory and back and is compared with what the driver reads there, registered as dma-buf, else
// by address (nvidia-peermem). Registrations of GPU memory are kept by range. Before each use the
// driver says whether the allocation is still the same one (its buffer id), and when memory may
// have been freed, sweep() lets go of what is gone. Memory of pools, mapped and managed memory go
// through staging.
//
// A copy is one host function in its stream, which waits for the transfer; GPUs whose kernels might
// start before the adapter's writes are seen are left out. Executor thread, but for the host
// functions. prove() blocks for milliseconds, before the session begins.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include <cuda.h>

#include "common/transport/link.h"

namespace rcuda::server {

class Executor;
struct SessionDevice;
struct StreamRef;

class GpuDirect {
 public:
  explicit GpuDirect(Executor& executor) : executor_(executor) {}
  ~GpuDirect();

  // Finds out which devices of the session can. One line of log for each.
  void prove();

  // nullopt: not this way.
  std::optional<CUresult> copy(const StreamRef& stream, uint64_t destination, uint64_t source,
                               uint64_t bytes);
  // Memory may have been freed.
  void sweep();

 private:
  enum class Method : uint8_t { kNone, kDmaBuf, kAddress };
  // A registered part of an allocation; transfers under way share it.
  struct Window;

  Status prove(const SessionDevice& device, Method method);
  Result<transport::RegionId> expose(CUdeviceptr address, uint64_t bytes, Method method);
  std::shared_ptr<Window> reach(CUdeviceptr address, uint64_t bytes);
  std::optional<unsigned long long> buffer_id(CUdeviceptr address) const;

  Executor& executor_;
  std::unordered_map<CUdevice, Method> methods_;
  std::list<std::shared_ptr<Window>> windows_;  // most recently used first
};

}  // namespace rcuda::server
