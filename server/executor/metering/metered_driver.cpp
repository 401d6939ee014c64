#include "server/executor/metering/metered_driver.h"

#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

Meters* of_process = nullptr;

}  // namespace

Meters& meters() { return *of_process; }

MeteredDriver::MeteredDriver(const api::DriverTable& driver,
                             const std::vector<SessionDevice>& devices,
                             const std::shared_ptr<Quota>& quota)
    : plain_(driver) {
  if (!quota->limits_device_memory()) return;
  metered_ = driver;
  meters_ = std::make_unique<Meters>(driver, devices, quota);
  of_process = meters_.get();
  meter_allocations(&metered_);
  meter_contexts(&metered_);
}

MeteredDriver::~MeteredDriver() {
  if (meters_ && of_process == meters_.get()) of_process = nullptr;
}

}  // namespace rcuda::server
