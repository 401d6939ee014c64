#include "softgpu/driver/occupancy.h"

#include <algorithm>
#include <memory>

#include <cuda.h>

#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/module.h"
#include "softgpu/exec/program.h"
#include "softgpu/exec/round_up.h"

namespace softgpu::driver {
namespace {

constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kWarpsPerMultiprocessor = 64;
constexpr uint32_t kBlocksPerMultiprocessor = 32;
constexpr uint32_t kRegistersPerMultiprocessor = 65536;
constexpr uint32_t kRegisterGranularity = 256;  // per warp
constexpr uint32_t kMaxRegistersPerThread = 255;
constexpr uint32_t kSharedPerMultiprocessor = 228 * 1024;
// The possible sizes of shared memory, in KB; the rest is L1 cache (Hopper tuning guide).
constexpr uint32_t kSharedConfigurations[] = {0, 8, 16, 32, 64, 100, 132, 164, 196, 228};
constexpr uint32_t kReservedSharedPerBlock = 1024;
constexpr uint32_t kSharedGranularity = 128;

// The smallest configuration that has at least the preferred share of a multiprocessor's shared
// memory, and at least the shared memory of one block.
uint32_t shared_per_multiprocessor(Function& function, size_t block_bytes) {
  const int percent = function.settings().preferred_carveout.load();
  if (percent < 0) return kSharedPerMultiprocessor;
  const size_t wanted =
      std::max(kSharedPerMultiprocessor / 100.0 * percent, static_cast<double>(block_bytes));
  for (const uint32_t configuration : kSharedConfigurations) {
    if (configuration * 1024 >= wanted) return configuration * 1024;
  }
  return kSharedPerMultiprocessor;
}

uint32_t warps_of(uint32_t threads) { return (threads + kWarpThreads - 1) / kWarpThreads; }

}  // namespace

uint32_t registers_per_thread(const exec::Kernel& kernel) {
  const uint32_t warps = std::max(warps_of(kernel.max_threads_per_block), 1u);
  const uint32_t fitting = kRegistersPerMultiprocessor / warps / kRegisterGranularity *
                           kRegisterGranularity / kWarpThreads;
  return std::clamp(kernel.registers, 1u, std::min(fitting, kMaxRegistersPerThread));
}

uint32_t max_dynamic_shared_bytes(const exec::Kernel& kernel, const FunctionSettings& settings) {
  const int set = settings.max_dynamic_shared_bytes.load(std::memory_order_relaxed);
  if (set >= 0) return static_cast<uint32_t>(set);
  return kDefaultSharedBytes - std::min(kDefaultSharedBytes, kernel.static_shared_bytes);
}

uint32_t active_blocks_per_multiprocessor(Function& function, uint32_t threads,
                                          size_t dynamic_shared_bytes) {
  const exec::Kernel& kernel = function.kernel();
  // On hardware, too, .maxntid does not affect this count, only the launch.
  if (threads == 0 || threads > kMaxThreadsPerBlock ||
      dynamic_shared_bytes > max_dynamic_shared_bytes(kernel, function.settings())) {
    return 0;
  }
  const uint32_t warps = warps_of(threads);
  const size_t registers_per_warp =
      exec::round_up(size_t{registers_per_thread(kernel)} * kWarpThreads, kRegisterGranularity);
  const size_t shared =
      exec::round_up(kernel.static_shared_bytes + dynamic_shared_bytes + kReservedSharedPerBlock,
                     kSharedGranularity);
  const size_t blocks =
      std::min({size_t{kBlocksPerMultiprocessor}, size_t{kWarpsPerMultiprocessor / warps},
                kRegistersPerMultiprocessor / registers_per_warp / warps,
                shared_per_multiprocessor(function, shared) / shared});
  return static_cast<uint32_t>(blocks);
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

namespace {

bool has_threads(const CUlaunchConfig* config) {
  return config && config->gridDimX && config->gridDimY && config->gridDimZ && config->blockDimX &&
         config->blockDimY && config->blockDimZ;
}

CUresult find_function(CUfunction handle, std::shared_ptr<Function>* function) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  return function_in_context(handle, *context, function);
}

CUresult max_active_blocks(int* blocks, CUfunction handle, int block_size, size_t shared_bytes,
                           unsigned flags) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  if (blocks == nullptr || block_size <= 0 ||
      (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *blocks = static_cast<int>(
      active_blocks_per_multiprocessor(*function, static_cast<uint32_t>(block_size), shared_bytes));
  return CUDA_SUCCESS;
}

// The block size that keeps the most threads resident; the largest of equally good sizes.
CUresult max_potential_block_size(int* grid, int* block, CUfunction handle,
                                  CUoccupancyB2DSize shared_for_block, size_t shared_bytes,
                                  int limit, unsigned flags) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(handle, &function)) return result;
  if (grid == nullptr || block == nullptr || limit < 0 ||
      (flags & ~CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int most = static_cast<int>(function->kernel().max_threads_per_block);
  if (limit > 0) most = std::min(most, limit);
  int best_threads = 0, best_block = 0, best_blocks = 0;
  // Tries the largest size, which need not be a multiple of a warp, then the smaller multiples.
  for (int size = most; size > 0;
       size = (size - 1) / static_cast<int>(kWarpThreads) * static_cast<int>(kWarpThreads)) {
    const size_t shared = shared_for_block != nullptr ? shared_for_block(size) : shared_bytes;
    const int blocks = static_cast<int>(
        active_blocks_per_multiprocessor(*function, static_cast<uint32_t>(size), shared));
    if (blocks * size <= best_threads) continue;
    best_threads = blocks * size;
    best_block = size;
    best_blocks = blocks;
  }
  *block = best_block;
  *grid = best_blocks * function->context().device().multiprocessors();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func,
                                                             int blockSize,
                                                             size_t dynamicSMemSize) {
  return max_active_blocks(numBlocks, func, blockSize, dynamicSMemSize, 0);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags) {
  return max_active_blocks(numBlocks, func, blockSize, dynamicSMemSize, flags);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit) {
  return max_potential_block_size(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                  dynamicSMemSize, blockSizeLimit, 0);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(
    int* minGridSize, int* blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize, int blockSizeLimit,
    unsigned int flags) {
  return max_potential_block_size(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                  dynamicSMemSize, blockSizeLimit, flags);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                         int numBlocks, int blockSize) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(func, &function)) return result;
  if (dynamicSmemSize == nullptr || numBlocks <= 0 || blockSize <= 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto blocks = static_cast<uint32_t>(numBlocks);
  if (blocks > active_blocks_per_multiprocessor(*function, static_cast<uint32_t>(blockSize), 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t share =
      shared_per_multiprocessor(*function, 0) / blocks / kSharedGranularity * kSharedGranularity;
  // An H200's driver does not subtract the system's 1 KB here.
  const size_t used = function->kernel().static_shared_bytes;
  *dynamicSmemSize =
      std::min<size_t>(share > used ? share - used : 0,
                       max_dynamic_shared_bytes(function->kernel(), function->settings()));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                    const CUlaunchConfig* config) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(func, &function)) return result;
  if (clusterSize == nullptr || !has_threads(config)) return CUDA_ERROR_INVALID_VALUE;
  *clusterSize = 1;  // clusters of more than one block are not supported
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                              const CUlaunchConfig* config) {
  std::shared_ptr<Function> function;
  if (CUresult result = find_function(func, &function)) return result;
  if (numClusters == nullptr || !has_threads(config)) return CUDA_ERROR_INVALID_VALUE;
  *numClusters = 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
