#include "server/executor/metering/metered_driver.h"

#include <utility>

#include "server/executor/metering/meters.h"

namespace rcuda::server {

void Meters::reclaim() {
  if (!before_trimming || before_trimming()) {
    pools.trim();
    graphs.trim();
  }
  refresh();
}

MeteredDriver::MeteredDriver(const api::DriverTable& driver,
                             const std::vector<SessionDevice>& devices,
                             const std::shared_ptr<Quota>& quota, const SessionLimits& limits,
                             wire::Work* done)
    : plain_(driver), meters_(std::make_unique<Meters>(driver, devices, quota, done)) {
  if (DriverDecorator<Meters>::exists() && !meters_->limits && !limits.priorities) return;
  DriverDecorator<Meters>& metered = metered_.emplace(driver, *meters_);
  if (limits.priorities) {
    meters_->priorities = *limits.priorities;
    limit_priorities(metered);
  }
  meter_memory(metered);
  if (quota->limits_device_memory()) meter_variables(metered);
}

void MeteredDriver::note_peak() { meters_->memory.note_peak(); }

uint64_t MeteredDriver::held(uint32_t ordinal) const { return meters_->memory.held(ordinal); }

bool MeteredDriver::take_host(uint64_t bytes) {
  return meters_->memory.take(MemoryMeter::kHost, bytes);
}

void MeteredDriver::give_host(uint64_t bytes) { meters_->memory.give(MemoryMeter::kHost, bytes); }

std::shared_ptr<const void> MeteredDriver::describe(CUmemGenericAllocationHandle handle,
                                                    ExportOrigin* origin) {
  return meters_->physical.describe(handle, origin);
}

CUresult MeteredDriver::import_allocation(CUmemGenericAllocationHandle* handle, void* descriptor,
                                          const ExportOrigin& origin, CUdevice device) {
  if (origin.bytes == 0) {
    return table().cuMemImportFromShareableHandle(handle, descriptor,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  PhysicalMeter::Import booked = meters_->physical.book_import(
      origin.place == ExportOrigin::Place::kHost ? MemoryMeter::kHost : device, origin);
  if (!booked) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = plain_.cuMemImportFromShareableHandle(
      handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) meters_->physical.imported(*handle, std::move(booked));
  return result;
}

void MeteredDriver::before_trimming(std::function<bool()> prepare) {
  meters_->before_trimming = std::move(prepare);
}

MeteredDriver::~MeteredDriver() = default;

}  // namespace rcuda::server
