// Event sets. They exist because nvidia-smi creates a set before it shows anything. No event is
// ever reported: devices accept no registrations (nvmlDeviceRegisterEvents in missing.cpp).
//
// Any thread. Blocking: nvmlEventSetWait, for the given time.
#include <chrono>
#include <thread>

#include "client/nvml/handles.h"
#include "common/nvml/nvml_functions.h"

using rcuda::client::nvml::check_initialized;

namespace {

char the_set;  // sets have no state

nvmlReturn_t check(nvmlEventSet_t set) {
  const nvmlReturn_t result = check_initialized();
  if (result != NVML_SUCCESS) return result;
  const bool is_set = reinterpret_cast<char*>(set) == &the_set;
  return is_set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  const nvmlReturn_t result = check_initialized();
  if (result != NVML_SUCCESS) return result;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  *set = reinterpret_cast<nvmlEventSet_t>(&the_set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { return check(set); }

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, void*, unsigned timeout_ms) {
  const nvmlReturn_t result = check(set);
  if (result != NVML_SUCCESS) return result;
  std::this_thread::sleep_for(std::chrono::milliseconds(timeout_ms));
  return NVML_ERROR_TIMEOUT;
}
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, void* data, unsigned timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  uint32_t index = 0;
  const nvmlReturn_t result = rcuda::client::nvml::index_of(device, &index);
  if (result != NVML_SUCCESS) return result;
  if (!types) return NVML_ERROR_INVALID_ARGUMENT;
  *types = 0;
  return NVML_SUCCESS;
}

}  // extern "C"
