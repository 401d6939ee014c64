#include "server/worker/compute_share.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "server/worker/end_watch.h"

namespace rcuda::server {
namespace {

// Read by NVIDIA's driver.
constexpr char kVariable[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

bool has_mps(const api::DriverTable& driver, CUdevice device) {
  int enabled = 0;
  return driver.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) ==
             CUDA_SUCCESS &&
         enabled != 0;
}

}  // namespace

std::vector<std::string> share_environment(uint32_t sm_percent) {
  if (sm_percent == 0) return {};
  return {std::string(kVariable) + "=" + std::to_string(sm_percent)};
}

Status check_share(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                   uint32_t sm_percent) {
  if (sm_percent == 0) return {};
  const char* const started_for = std::getenv(kVariable);
  if (!started_for || started_for != std::to_string(sm_percent)) {
    return {Code::kProtocol,
            "the worker was not started for sm_percent = " + std::to_string(sm_percent)};
  }
  for (const SessionDevice& device : devices) {
    if (!has_mps(driver, device.device)) {
      return {Code::kUnavailable,
              "the server cannot hold a session to " + std::to_string(sm_percent) +
                  " % of a GPU (sm_percent), because NVIDIA's MPS does not run there: its "
                  "administrator starts it before the server (nvidia-cuda-mps-control -d), or "
                  "removes sm_percent"};
    }
  }
  return {};
}

bool any_mps(const api::DriverTable& driver, const std::vector<SessionDevice>& devices) {
  return std::any_of(devices.begin(), devices.end(),
                     [&](const SessionDevice& device) { return has_mps(driver, device.device); });
}

Status check_contexts(const api::DriverTable& driver, const std::vector<SessionDevice>& devices,
                      std::chrono::nanoseconds patience,
                      std::function<void(const Status& why)> expire) {
  if (!any_mps(driver, devices)) return {};
  EndWatch watch([] { return Status(Code::kUnavailable, "NVIDIA's MPS does not answer"); },
                 patience, std::move(expire));
  RCUDA_RETURN_IF_ERROR(watch.start());
  for (const SessionDevice& device : devices) {
    if (!has_mps(driver, device.device)) continue;
    CUresult result = driver.cuCtxSetCurrent(device.primary);
    if (result == CUDA_SUCCESS) result = driver.cuCtxSynchronize();
    if (result == CUDA_SUCCESS) continue;
    return Status::from_cuda(result,
                             "a fault in another program has ended the contexts of all clients of "
                             "this GPU's MPS: start the program again");
  }
  return {};
}

}  // namespace rcuda::server
