// Handlers of CUdevResources and green contexts (api/table/context.toml).
#include <algorithm>
#include <vector>

#include "api/server_handlers.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/core/services.h"
#include "server/executor/objects/device_resources.h"

namespace rcuda::server {
namespace {

constexpr unsigned kMostResources = 1024;

CUresult keep_all(DeviceResources& resources, CUdevResource* all, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(resources.keep(&all[i]));
  }
  return CUDA_SUCCESS;
}

CUresult multiprocessors_of(const api::DriverTable& driver, CUgreenCtx green, unsigned* count) {
  CUdevResource resource{};
  const CUresult result =
      driver.cuGreenCtxGetDevResource(green, &resource, CU_DEV_RESOURCE_TYPE_SM);
  *count = resource.sm.smCount;
  return result;
}

}  // namespace

CUresult serve_cuDeviceGetDevResource(ContextServices& services, CUdevice device,
                                      CUdevResource* resource, CUdevResourceType type) {
  const CUresult result = services.driver.cuDeviceGetDevResource(device, resource, type);
  return result == CUDA_SUCCESS ? services.device_resources.keep(resource) : result;
}

CUresult serve_cuCtxGetDevResource(ContextServices& services, CUcontext context,
                                   CUdevResource* resource, CUdevResourceType type) {
  const CUresult result = services.driver.cuCtxGetDevResource(context, resource, type);
  return result == CUDA_SUCCESS ? services.device_resources.keep(resource) : result;
}

CUresult serve_rcuda_split_resource(ContextServices& services, CUdevice, const CUdevResource* input,
                                    unsigned flags, unsigned least, CUdevResource* groups,
                                    unsigned* count, CUdevResource* remaining) {
  if (*count > kMostResources) return CUDA_ERROR_INVALID_VALUE;
  DeviceResources& resources = services.device_resources;
  CUdevResource whole;
  RCUDA_RETURN_IF_CUDA_ERROR(resources.find(*input, &whole));
  const unsigned room = groups ? *count : 0;
  const CUresult result =
      services.driver.cuDevSmResourceSplitByCount(groups, count, &whole, remaining, flags, least);
  if (result != CUDA_SUCCESS) return result;
  const CUresult kept = keep_all(resources, groups, std::min(room, *count));
  return kept == CUDA_SUCCESS ? resources.keep(remaining) : kept;
}

CUresult serve_rcuda_resource_desc(ContextServices& services, CUdevice, const CUdevResource* given,
                                   unsigned count, unsigned* desc) {
  if (count == 0 || count > kMostResources) return CUDA_ERROR_INVALID_VALUE;
  DeviceResources& resources = services.device_resources;
  std::vector<CUdevResource> found(count);
  std::vector<uint32_t> numbers;
  for (unsigned i = 0; i < count; ++i) {
    RCUDA_RETURN_IF_CUDA_ERROR(resources.find(given[i], &found[i]));
    numbers.push_back(DeviceResources::number_of(given[i]));
  }
  *desc = resources.find_descriptor(numbers);
  if (*desc != 0) return CUDA_SUCCESS;
  CUdevResourceDesc descriptor = nullptr;
  RCUDA_RETURN_IF_CUDA_ERROR(
      services.driver.cuDevResourceGenerateDesc(&descriptor, found.data(), count));
  *desc = resources.keep_descriptor(std::move(numbers), descriptor);
  return *desc != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult serve_rcuda_green_create(ContextServices& services, CUdevice device, unsigned desc,
                                  unsigned flags, unsigned* multiprocessors, CUcontext* context) {
  const api::DriverTable& driver = services.driver;
  CUdevResourceDesc descriptor;
  if (!services.device_resources.descriptor(desc, &descriptor)) return CUDA_ERROR_INVALID_VALUE;
  CUgreenCtx green = nullptr;
  CUresult result = driver.cuGreenCtxCreate(&green, descriptor, device, flags);
  if (result != CUDA_SUCCESS) return result;
  result = driver.cuCtxFromGreenCtx(context, green);
  if (result == CUDA_SUCCESS) result = multiprocessors_of(driver, green, multiprocessors);
  if (result != CUDA_SUCCESS) {
    (void)driver.cuGreenCtxDestroy(green);
    return result;
  }
  services.device_resources.add_green(*context, green);
  return CUDA_SUCCESS;
}

CUresult serve_rcuda_green_stream(ContextServices& services, CUcontext context, unsigned flags,
                                  int priority, CUstream* stream) {
  const CUgreenCtx green = services.device_resources.green(context);
  if (!green || !services.driver.cuGreenCtxStreamCreate) return CUDA_ERROR_INVALID_CONTEXT;
  return services.driver.cuGreenCtxStreamCreate(stream, green, flags, priority);
}

}  // namespace rcuda::server
