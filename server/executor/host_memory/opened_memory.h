// OpenedMemory: maps memory that another process has exported by a descriptor instead of an IPC
// handle (server/executor/movable). As with cuIpcOpenMemHandle, opening the same memory again
// returns the same address, and each open() needs a close().
//
// Executor thread only. Blocking: close(), until the work of the current context is done. Errors:
// those of the driver.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <cuda.h>

#include "common/base/unique_fd.h"
#include "common/wire/exported_name.h"
#include "server/executor/metering/meters.h"
#include "server/names/exported_names.h"

namespace rcuda::server {

class OpenedMemory {
 public:
  // All outlive this object. Each device that can reach the memory gets access.
  OpenedMemory(Meters& meters, const std::vector<SessionDevice>& devices);

  // Maps the descriptor's memory, which is on `device`. `secret`: from the memory's name.
  CUresult open(const wire::ExportNumber& secret, UniqueFd descriptor, const ExportOrigin& origin,
                CUdevice device, CUdeviceptr* address);
  bool has(CUdeviceptr address) const { return opened_.contains(address); }
  CUresult close(CUdeviceptr address);
  // To be called after the end or the reset of the context.
  void end_context(CUcontext context);

 private:
  struct Opened {
    wire::ExportNumber secret{};
    CUmemGenericAllocationHandle handle = 0;
    uint64_t bytes = 0;
    CUcontext context = nullptr;  // where it was first opened
    uint64_t count = 1;
  };
  CUresult map(const Opened& opened, CUdevice device, CUdeviceptr* address);
  std::vector<CUmemAccessDesc> access_to(CUdevice device) const;
  void unmap(std::map<CUdeviceptr, Opened>::iterator opened);

  Meters& meters_;
  const std::vector<SessionDevice>& devices_;
  std::map<CUdeviceptr, Opened> opened_;
};

}  // namespace rcuda::server
