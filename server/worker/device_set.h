// DeviceSet: the devices of a worker, prepared before a session requests them: primary contexts
// retained, attributes read, page-locked staging memory registered.
//
// Threads: the worker's main thread, which later runs the session. Blocking: prepare(), for the
// driver (a tenth of a second per device with NVIDIA's). A process may have several DeviceSets;
// each owns its staging memory and its references to contexts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/base/list_text.h"
#include "common/base/status.h"
#include "common/messages/handshake.h"
#include "server/executor/core/session_resources.h"
#include "server/protocol/worker_messages.h"
#include "server/sandbox/device_scope.h"
#include "server/worker/staging_memory.h"

namespace rcuda::server {

class DeviceSet {
 public:
  // `ordinals`: the driver's devices to use; empty: all. If `scope` has devices, these are used
  // instead, under the scope's numbers. `full`: set to the number of a device that has no memory
  // for a context.
  static Result<std::unique_ptr<DeviceSet>> prepare(const api::DriverTable& driver,
                                                    const std::vector<uint32_t>& ordinals,
                                                    std::unique_ptr<StagingMemory> staging,
                                                    const DeviceScope& scope = {},
                                                    std::optional<uint32_t>* full = nullptr);
  ~DeviceSet();

  const std::vector<uint32_t>& ordinals() const { return ordinals_; }
  // Selects the session's devices, in the order of `wanted`, and fills in `welcome` for the client
  // and `resources` for the executor. The text of kNotFound names the ordinal that is not offered,
  // and the ordinals that are offered.
  Status select(const std::vector<uint32_t>& wanted, wire::Welcome* welcome,
                SessionResources* resources) const;
  // Adds the devices to `ready`, in the order of ordinals().
  void describe(WorkerReady* ready) const;

 private:
  struct Device {
    CUdevice device = 0;
    CUcontext primary = nullptr;
    uint32_t ordinal = 0;   // the server's number of the device
    wire::DeviceInfo info;  // without `ordinal` and `peer_attributes`, which differ by session
  };

  DeviceSet(const api::DriverTable& driver, std::unique_ptr<StagingMemory> staging)
      : driver_(driver), staging_(std::move(staging)) {}
  Status add(uint32_t ordinal, uint32_t number, std::optional<uint32_t>* full);
  Result<uint32_t> find(const DeviceScope::Device& wanted, uint32_t count) const;
  Status lock_staging();

  const api::DriverTable& driver_;
  std::vector<uint32_t> ordinals_;
  std::vector<Device> devices_;  // in the order of ordinals_
  std::unique_ptr<StagingMemory> staging_;
  bool locked_ = false;  // the staging memory is page-locked
};

}  // namespace rcuda::server
