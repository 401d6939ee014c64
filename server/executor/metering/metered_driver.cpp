#include "server/executor/metering/metered_driver.h"

#include <utility>

#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

Meters* of_process = nullptr;

}  // namespace

Meters& meters() { return *of_process; }

void Meters::reclaim() {
  if (observe_frees) observe_frees();
  pools.trim();
  stream_frees.refresh(allocations);
}

MeteredDriver::MeteredDriver(const api::DriverTable& driver,
                             const std::vector<SessionDevice>& devices,
                             const std::shared_ptr<Quota>& quota)
    : plain_(driver) {
  if (!quota->limits_device_memory() && !quota->limits_host_memory()) return;
  metered_ = driver;
  meters_ = std::make_unique<Meters>(driver, devices, quota);
  of_process = meters_.get();
  meter_allocations(&metered_);
  meter_contexts(&metered_);
  meter_pools(&metered_);
  meter_mappings(&metered_);
}

void MeteredDriver::observe_frees_with(std::function<void()> observe) {
  if (meters_) meters_->observe_frees = std::move(observe);
}

MeteredDriver::~MeteredDriver() {
  if (meters_ && of_process == meters_.get()) of_process = nullptr;
}

}  // namespace rcuda::server
