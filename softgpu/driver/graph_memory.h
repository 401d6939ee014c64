// GraphMemory: the allocation of a graph's memory node, shared by the node, executable graphs and
// launches that are under way. The memory itself is the memory layer's (pools.h); when the last of
// them goes it is given up.
#pragma once

#include <cuda.h>

#include "softgpu/driver/pools.h"

namespace softgpu::driver {

class GraphMemory {
 public:
  explicit GraphMemory(CUdeviceptr address) : address_(address) {}
  ~GraphMemory() { abandon_graph_memory(address_); }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  CUdeviceptr address() const { return address_; }

 private:
  const CUdeviceptr address_;
};

}  // namespace softgpu::driver
