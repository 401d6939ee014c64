// GpuDirect: copies between page-locked client memory and GPU memory. The adapter accesses GPU
// memory directly, without a buffer in between.
//
// A device's memory is used only if a probe succeeds (prove_gpudirect()). Registrations of GPU
// memory are kept by range. Each use first compares the buffer id of the registration with the id
// that the driver reports for the address: another id means that the memory was freed and allocated
// again. sweep() drops registrations of freed memory.
// Memory of pools, memory that the program has mapped, and managed memory are copied through the
// shadow of the client memory (host_memory.h). Transfers (transfers.h) moves the bytes.
// Executor thread only. Blocking: prove(), for milliseconds, before the session begins;
// find_registered(), while it registers memory.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "server/executor/movable/movable_memory.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

// How a device's memory is registered.
enum class Registered : uint8_t { kAsDmaBuf, kByAddress };  // kByAddress: by nvidia-peermem

// Returns how the Link's adapter reaches the device's memory, or nullopt if it cannot. A successful
// registration proves nothing, so a pattern goes through the adapter into GPU memory and back, and
// is compared with the bytes that the driver sees there. Tries kAsDmaBuf, then kByAddress; with
// `only`, tries only this way. Also returns nullopt for GPUs that may start kernels before an
// adapter's writes are visible. Logs one line. The device's primary context must be current. Blocks
// for milliseconds, but for up to a second per copy while other work occupies the device's queues.
// `memory`: the probe's own memory and stream, which the next probe uses again. Freeing them may
// wait for the work of the device, so the caller chooses when.
std::optional<Registered> prove_gpudirect(const api::DriverTable& driver, transport::Link& link,
                                          CUdevice device, std::shared_ptr<void>* memory,
                                          std::optional<Registered> only = {});

class GpuDirect {
 public:
  // The arguments outlive this object.
  GpuDirect(const api::DriverTable& driver, transport::Link& link, const MovableMemory& movable)
      : driver_(driver), link_(link), movable_(movable) {}
  ~GpuDirect();

  // Probes each device. Does nothing if the Link has no adapter.
  void prove(const std::vector<SessionDevice>& devices);

  // Whether prove() has found at least one device whose memory the adapter reaches.
  bool any() const { return !proven_.empty(); }
  // Registers device memory if necessary; it stays registered as long as the result lives. Returns
  // null if these bytes must be copied another way.
  std::shared_ptr<const void> find_registered(CUdeviceptr address, uint64_t bytes);
  // To be called when memory may have been freed.
  void sweep();
  // Drops all registrations. To be called when no transfer is in flight.
  void forget() { registrations_.clear(); }

 private:
  // A registered part of an allocation; transfers in flight share it.
  struct Registration;

  std::shared_ptr<Registration> reach(CUdeviceptr address, uint64_t bytes);
  std::optional<unsigned long long> buffer_id(CUdeviceptr address) const;

  const api::DriverTable& driver_;
  transport::Link& link_;
  const MovableMemory& movable_;
  std::map<CUdevice, Registered> proven_;
  std::list<std::shared_ptr<Registration>> registrations_;  // most recently used first
};

}  // namespace rcuda::server
