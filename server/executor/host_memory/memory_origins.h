// MemoryOrigins: finds the device of memory that a session exports, and checks whether a session
// may import memory of another session.
//
// A session may import memory of its own devices only, and of the host. Otherwise it could use a
// device that it did not get: a device that is leased to others, or more devices than its limit
// allows.
//
// Executor thread only. Blocking: as the driver's queries, which wait for nothing. Errors are the
// CUresults that a program gets; the client prints the remedy (client/code/refused_import.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class MemoryOrigins {
 public:
  // The driver outlives this object.
  MemoryOrigins(const api::DriverTable& driver, const std::vector<SessionDevice>& devices);

  CUresult of_address(CUdeviceptr address, ExportOrigin* origin) const;
  CUresult of_allocation(CUmemGenericAllocationHandle handle, ExportOrigin* origin) const;

  // Returns CUDA_ERROR_INVALID_DEVICE if the session does not have the memory's device, or if the
  // exporter has not reported the device. (A driver returns this error in a process without the
  // device.) `device`: written for memory of a device; may be null.
  CUresult may_import(const ExportOrigin& origin, CUdevice* device = nullptr) const;

 private:
  CUresult of_device(CUdevice device, ExportOrigin* origin) const;

  const api::DriverTable& driver_;
  struct Own {
    CUdevice device = 0;
    std::array<uint8_t, 16> uuid{};
  };
  std::vector<Own> own_;
};

}  // namespace rcuda::server
