// MeteredDriver: a driver whose functions that allocate memory for the program book it with the
// session's Quota, and fail with CUDA_ERROR_OUT_OF_MEMORY if it does not fit. cuMemGetInfo tells
// the quota. Priorities above the session's limit are lowered to it, as the driver lowers those
// above its own.
//
// A session calls the driver through this for what its program asks for. What the worker allocates
// for itself comes from the plain table, and is not counted. Without a limit memory is counted as
// well, but nothing that costs more than questions to the driver is done for that: variables of
// code and contexts are left out, and memory freed in stream order counts as free at once.
//
// Only one session with a limit may exist in a process at a time (api/driver_decorator.h). A worker
// serves one. Executor thread only. Blocking: as the driver's own; before a refusal they trim the
// session's pools.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "api/driver_decorator.h"
#include "api/driver_table.h"
#include "common/messages/work.h"
#include "server/executor/host_memory/host_meter.h"
#include "server/executor/objects/objects.h"
#include "server/names/exported_names.h"
#include "server/quota/limits.h"
#include "server/quota/quota.h"

namespace rcuda::server {

struct Meters;

class MeteredDriver final : public HostMeter {
 public:
  // `driver` and `done`, where the peak of the memory is noted, outlive this object.
  MeteredDriver(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                const std::shared_ptr<Quota>& quota, const SessionLimits& limits, wire::Work* done);
  ~MeteredDriver() override;
  MeteredDriver(const MeteredDriver&) = delete;
  MeteredDriver& operator=(const MeteredDriver&) = delete;

  // Called before pools and graphs are trimmed, to show the driver which frees are over: it trims
  // no others (pool_frees.h). False: nothing may be trimmed now, because that could wait for the
  // device.
  void before_trimming(std::function<bool()> prepare);

  // Books memory of the host that the worker page-locks for the program. False: it does not fit.
  bool take_host(uint64_t bytes) override;
  void give_host(uint64_t bytes) override;

  // Physical memory that is exported: fills in how much it is. The memory stays booked as long as
  // the result lives, because its descriptor keeps it in the driver. Null: it is not booked.
  std::shared_ptr<const void> describe(CUmemGenericAllocationHandle handle, ExportOrigin* origin);
  // Imports physical memory, of `device` unless it is the host's. It is booked before the driver is
  // asked.
  CUresult import_allocation(CUmemGenericAllocationHandle* handle, void* descriptor,
                             const ExportOrigin& origin, CUdevice device);

  void note_peak();                       // to be called before the peak is read
  uint64_t held(uint32_t ordinal) const;  // bytes that the program has now on a device

  const api::DriverTable& table() const { return metered_ ? metered_->table() : plain_; }

 private:
  const api::DriverTable& plain_;
  const std::unique_ptr<Meters> meters_;
  std::optional<DriverDecorator<Meters>> metered_;
};

}  // namespace rcuda::server
