#include "server/worker/compute_share.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/cuda/return_if_error.h"
#include "server/worker/end_watch.h"

namespace rcuda::server {
namespace {

// Read by NVIDIA's driver.
constexpr char kVariable[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

constexpr uint64_t kLookInterval = 1'000'000'000;  // nanoseconds

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
    return {Code::kProtocol, std::string(kVariable) +
                                 " of the worker does not match the session's sm_percent = " +
                                 std::to_string(sm_percent) +
                                 ", so its share of the GPU cannot be limited: restart the server"};
  }
  for (const SessionDevice& device : devices) {
    if (!has_mps(driver, device.device)) {
      return {Code::kInvalidArgument,
              "the server cannot limit a session to " + std::to_string(sm_percent) +
                  " % of a GPU (sm_percent), because NVIDIA's MPS does not run there: start "
                  "MPS before the server (nvidia-cuda-mps-control -d), or remove sm_percent from "
                  "the server's limits"};
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
  EndWatch watch(
      [] {
        return Status(Code::kUnavailable, "NVIDIA's MPS on the server's machine does not answer");
      },
      patience, std::move(expire));
  RCUDA_RETURN_IF_ERROR(watch.start());
  for (const SessionDevice& device : devices) {
    if (!has_mps(driver, device.device)) continue;
    CUresult result = driver.cuCtxSetCurrent(device.primary);
    if (result == CUDA_SUCCESS) result = driver.cuCtxSynchronize();
    if (result == CUDA_SUCCESS) continue;
    return Status::from_cuda(result,
                             "a fault in another program has ended the contexts of all clients of "
                             "this GPU's MPS: start your program again");
  }
  return {};
}

ContextWatch::ContextWatch(const api::DriverTable& driver,
                           const std::vector<SessionDevice>& devices, SessionObjects& objects)
    : driver_(driver), objects_(objects) {
  if (!any_mps(driver, devices)) return;
  for (uint32_t i = 0; i < devices.size(); ++i) {
    probes_.push_back({wire::primary_context_id(i), 0, nullptr});
  }
}

CUresult ContextWatch::ask(Probe& probe) {
  const ContextState* const context = objects_.find_context(probe.context);
  if (!context) return CUDA_SUCCESS;
  RCUDA_RETURN_IF_CUDA_ERROR(objects_.make_current(probe.context));
  if (probe.stream && probe.generation == context->generation) {
    return driver_.cuStreamQuery(probe.stream);
  }
  // The program has reset the device, or this is the first look().
  probe.generation = context->generation;
  probe.stream = nullptr;
  const CUresult result = driver_.cuStreamCreate(&probe.stream, CU_STREAM_NON_BLOCKING);
  // Lack of memory is not an error of the context; the next look tries again.
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

Status ContextWatch::look(uint64_t now) {
  if (now < due_ || !watches()) return {};
  due_ = now + kLookInterval;
  ContextState* const before = objects_.current_context();
  const bool had_ended = ended_;
  ended_ = false;
  for (Probe& probe : probes_) ended_ = ask(probe) != CUDA_SUCCESS || ended_;
  if (before) (void)objects_.make_current(before->id);
  if (!had_ended || !ended_) return {};
  return {Code::kUnavailable,
          "a failed kernel has ended all sessions on its GPU, because they share NVIDIA's MPS: "
          "start the program again"};
}

}  // namespace rcuda::server
