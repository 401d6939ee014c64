// GpuDirect: copies between page-locked client memory and GPU memory. The adapter accesses GPU
// memory directly, without a buffer in between.
//
// A device takes part only if a probe succeeds: a pattern goes through the adapter into GPU memory
// and back, and is compared with the bytes that the driver reads there. The memory is registered as
// dma-buf, or else by address (nvidia-peermem). GPUs that may start kernels before an adapter's
// writes are visible take no part. Registrations of GPU memory are kept by range. Before each use,
// the allocation's buffer id from the driver tells whether it is still the same allocation. sweep()
// drops registrations of freed memory. Memory of pools, mapped memory and managed memory go through
// staging.
// A copy is one host function in its stream, which waits for the transfer.
// Threads: the executor thread; host functions run on the driver's threads. Blocking: prove(), for
// milliseconds, before the session begins. Errors: copy() returns nullopt for a copy that has to go
// another way.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "server/executor/answers/answers.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class GpuDirect {
 public:
  // All outlive this object.
  GpuDirect(const api::DriverTable& driver, transport::Link& link, Answers& answers,
            const HostMemory& host_memory)
      : driver_(driver), link_(link), answers_(answers), host_memory_(host_memory) {}
  ~GpuDirect();

  // Probes each device, and logs one line for it.
  void prove(const std::vector<SessionDevice>& devices);

  // Returns nullopt if the copy has to go another way.
  std::optional<CUresult> copy(const SessionStream& stream, uint64_t destination, uint64_t source,
                               uint64_t bytes);
  // To be called when memory may have been freed.
  void sweep();

 private:
  enum class Method : uint8_t { kNone, kDmaBuf, kAddress };
  // A registered part of an allocation; transfers in flight share it.
  struct Window;

  Status prove(const SessionDevice& device, Method method);
  Result<transport::RegionId> expose(CUdeviceptr address, uint64_t bytes, Method method);
  std::shared_ptr<Window> reach(CUdeviceptr address, uint64_t bytes);
  std::optional<unsigned long long> buffer_id(CUdeviceptr address) const;

  const api::DriverTable& driver_;
  transport::Link& link_;
  Answers& answers_;
  const HostMemory& host_memory_;
  std::unordered_map<CUdevice, Method> methods_;
  std::list<std::shared_ptr<Window>> windows_;  // most recently used first
};

}  // namespace rcuda::server
