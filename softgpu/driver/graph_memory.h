// GraphMemory: the allocation of a graph's memory node, shared by the node, executable graphs and
// launches that are under way. The memory itself is the memory layer's (pools.h); when the last of
// them goes it is given up.
#pragma once

#include <utility>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/pools.h"

namespace softgpu::driver {

class GraphMemory {
 public:
  // `params` as cuGraphMemAllocNodeGetParams gives them back.
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
  const std::vector<CUmemAccessDesc> access_;  // what params_ points to
};

}  // namespace softgpu::driver
