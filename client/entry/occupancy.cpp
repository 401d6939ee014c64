// Occupancy. The client queries the worker's driver once per combination of arguments and caches
// the answer in the kernel's FunctionInfo, because libraries repeat these queries before every
// launch.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/launch_shape.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/base/mutex.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The most cached answers per function and kind of query. Further queries are round trips.
constexpr size_t kMostKept = 1024;

int32_t attribute(const FunctionInfo& info, CUfunction_attribute which) {
  return info.attributes[which].load(std::memory_order_relaxed);
}

// Returns, as bytes, everything that the answer of cuOccupancyMaxActiveClusters depends on. A query
// with a stream has no key, because the stream may belong to a context with fewer multiprocessors.
std::optional<std::string> cluster_question(const Route& route, const FunctionInfo& info,
                                            const CUlaunchConfig& config) {
  if (config.hStream || (config.numAttrs > 0 && !config.attrs)) return std::nullopt;
  std::string key;
  const auto append = [&key](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(route.device);
  append(route.context);
  for (const unsigned number : {config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX,
                                config.blockDimY, config.blockDimZ, config.sharedMemBytes}) {
    append(number);
  }
  for (size_t i = 0; i < info.attributes.size(); ++i) {
    append(info.attributes[i].load(std::memory_order_relaxed));
  }
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    append(config.attrs[i].id);
    const auto value = value_of(config.attrs[i]);
    key.append(reinterpret_cast<const char*>(value.data()), value.size());
  }
  return key;
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                              int block_size, size_t shared_bytes,
                                                              unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!blocks) return CUDA_ERROR_INVALID_VALUE;
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(function, route, &callable));
  FunctionInfo& info = *callable.info;
  const FunctionInfo::OccupancyQuestion question{
      route.device,
      block_size,
      shared_bytes,
      flags,
      attribute(info, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
      attribute(info, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)};
  {
    rcuda::MutexLock lock(info.occupancy_mutex);
    if (auto known = info.occupancy.find(question); known != info.occupancy.end()) {
      *blocks = known->second;
      return CUDA_SUCCESS;
    }
  }
  const CUresult result = forward_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      blocks, function, block_size, shared_bytes, flags);
  if (result == CUDA_SUCCESS) {
    rcuda::MutexLock lock(info.occupancy_mutex);
    if (info.occupancy.size() < kMostKept) info.occupancy.emplace(question, *blocks);
  }
  return result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                     int block_size, size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                              shared_bytes, 0);
}

// Tries all block sizes in steps of a warp and picks the size with the most resident threads. Among
// sizes with equally many threads it picks the largest, like the driver.
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size,
                                                   CUfunction function,
                                                   CUoccupancyB2DSize shared_of_block,
                                                   size_t shared_bytes, int limit, unsigned flags) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!grid_size || !block_size || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(function, route, &callable));
  const Device& device = *Process::get().device(static_cast<CUdevice>(route.device));
  const int warp = std::max(1, device.attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
  int largest = device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  const int allowed = attribute(*callable.info, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  if (allowed > 0) largest = std::min(largest, allowed);
  if (limit > 0) largest = std::min(largest, limit);
  int best_threads = 0, best_size = 0, best_grid = 0;
  for (int rounded = (largest + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
    const int size = std::min(rounded, largest);
    int blocks = 0;
    RCUDA_RETURN_IF_CUDA_ERROR(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &blocks, function, size, shared_of_block ? shared_of_block(size) : shared_bytes, flags));
    if (blocks * size > best_threads) {
      best_threads = blocks * size;
      best_size = size;
      best_grid = blocks * device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    }
    if (best_threads >= device.attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)) {
      break;
    }
  }
  if (best_threads == 0) return CUDA_ERROR_INVALID_VALUE;
  *grid_size = best_grid;
  *block_size = best_size;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, CUfunction function,
                                          CUoccupancyB2DSize shared_of_block, size_t shared_bytes,
                                          int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, function, shared_of_block,
                                                   shared_bytes, limit, 0);
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                      const CUlaunchConfig* config) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  if (!clusters || !config) return CUDA_ERROR_INVALID_VALUE;
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(function, route, &callable));
  FunctionInfo& info = *callable.info;
  std::optional<std::string> question = cluster_question(route, info, *config);
  if (question) {
    rcuda::MutexLock lock(info.occupancy_mutex);
    if (auto known = info.active_clusters.find(*question); known != info.active_clusters.end()) {
      *clusters = known->second;
      return CUDA_SUCCESS;
    }
  }
  const CUresult result = forward_cuOccupancyMaxActiveClusters(clusters, function, config);
  if (result == CUDA_SUCCESS && question) {
    rcuda::MutexLock lock(info.occupancy_mutex);
    if (info.active_clusters.size() < kMostKept) {
      info.active_clusters.emplace(std::move(*question), *clusters);
    }
  }
  return result;
}

}  // extern "C"
