#include "server/worker/context_watch.h"

#include <string>

#include "common/cuda/return_if_error.h"
#include "server/worker/compute_share.h"

namespace rcuda::server {
namespace {

constexpr uint64_t kInterval = 1'000'000'000;

}  // namespace

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
  // The program has reset the device, or this is the first time.
  probe.generation = context->generation;
  probe.stream = nullptr;
  const CUresult result = driver_.cuStreamCreate(&probe.stream, CU_STREAM_NON_BLOCKING);
  // Says nothing of the context; tried again the next time.
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

Status ContextWatch::look(uint64_t now) {
  if (now < due_ || !watches()) return {};
  due_ = now + kInterval;
  ContextState* const before = objects_.current_context();
  const bool had_ended = ended_;
  ended_ = false;
  for (Probe& probe : probes_) ended_ = ask(probe) != CUDA_SUCCESS || ended_;
  if (before) (void)objects_.make_current(before->id);
  if (!had_ended || !ended_) return {};
  return {Code::kUnavailable,
          "a kernel that failed has ended all sessions on its GPU, because the server uses MPS"};
}

}  // namespace rcuda::server
