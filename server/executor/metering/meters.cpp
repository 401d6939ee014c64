#include "server/executor/metering/meters.h"

#include <utility>

namespace rcuda::server {

Meters::Meters(const api::DriverTable& plain, const std::vector<SessionDevice>& devices,
               const std::shared_ptr<Quota>& quota, const SessionLimits& session_limits,
               wire::Work* done)
    : driver(plain),
      limits(quota->limits(&Allowance::device_memory) || quota->limits(&Allowance::host_memory)),
      memory(plain, devices, quota, done),
      allocations(memory),
      arrays(memory),
      modules(memory),
      libraries(memory, devices),
      contexts(memory),
      heaps(memory),
      printf_buffers(memory),
      pools(plain, memory, devices, limits),
      stream_frees(plain),
      physical(memory),
      graphs(plain, memory, devices) {
  memory.reclaim = [this] { reclaim(); };
  if (DriverDecorator<Meters>::exists() && !limits && !session_limits.priorities) return;
  metered.emplace(plain, *this);
  if (session_limits.priorities) {
    priorities = *session_limits.priorities;
    limit_priorities(*metered);
  }
  meter_memory(*metered);
  if (quota->limits(&Allowance::device_memory)) meter_variables(*metered);
}

void Meters::reclaim() {
  if (!before_trimming || before_trimming()) {
    pools.trim();
    graphs.trim();
  }
  refresh();
}

CUresult Meters::import_allocation(CUmemGenericAllocationHandle* handle, void* descriptor,
                                   const ExportOrigin& origin, CUdevice device) {
  if (origin.bytes == 0) {
    return table().cuMemImportFromShareableHandle(handle, descriptor,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  PhysicalMeter::Import booked = physical.book_import(
      origin.place == ExportOrigin::Place::kHost ? MemoryMeter::kHost : device, origin);
  if (!booked) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver.cuMemImportFromShareableHandle(
      handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) physical.imported(*handle, std::move(booked));
  return result;
}

}  // namespace rcuda::server
