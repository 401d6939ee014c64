// GraphMemory: the allocation of a graph's memory node, shared by the node, executable graphs and
// running launches. The memory layer (pools.h) owns the memory. When the last user releases the
// GraphMemory, its destructor abandons the memory.
#pragma once

#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/pools.h"

namespace softgpu::driver {

class GraphMemory {
 public:
  // `params` as returned by cuGraphMemAllocNodeGetParams.
  explicit GraphMemory(const CUDA_MEM_ALLOC_NODE_PARAMS& params)
      : params_(params), access_(params.accessDescs, params.accessDescs + params.accessDescCount) {
    params_.accessDescs = access_.empty() ? nullptr : access_.data();
  }
  ~GraphMemory() { abandon_graph_memory(address()); }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  CUdeviceptr address() const { return params_.dptr; }
  const CUDA_MEM_ALLOC_NODE_PARAMS& params() const { return params_; }

 private:
  CUDA_MEM_ALLOC_NODE_PARAMS params_;
  const std::vector<CUmemAccessDesc> access_;  // params_ points to it
};

}  // namespace softgpu::driver
