// Shared by the tests of graphs: an empty graph, a stream to run it in, and nodes of the fixture's
// kernels.
#pragma once

#include <vector>

#include "tests/unit/softgpu/driver/stream_fixture.h"

namespace softgpu::driver {

class GraphFixture : public StreamFixture {
 protected:
  void SetUp() override {
    StreamFixture::SetUp();
    s_ = stream();
    CUDA_OK(cuGraphCreate(&graph_, 0));
  }

  // Parameters of a kernel node, and the values that its parameter pointers refer to.
  struct KernelNode {
    CUdeviceptr address = 0;
    uint64_t value = 0;
    void* pointers[2] = {&address, &value};
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    KernelNode(CUfunction function, CUdeviceptr at, uint64_t with) : address(at), value(with) {
      params.func = function;
      params.gridDimX = params.gridDimY = params.gridDimZ = 1;
      params.blockDimX = params.blockDimY = params.blockDimZ = 1;
      params.kernelParams = pointers;
    }
    KernelNode(const KernelNode&) = delete;
    KernelNode& operator=(const KernelNode&) = delete;
  };
  CUgraphNode kernel(CUgraph graph, CUfunction function, CUdeviceptr at, uint64_t value,
                     std::vector<CUgraphNode> after = {}) {
    const KernelNode node(function, at, value);
    CUgraphNode made = nullptr;
    EXPECT_EQ(cuGraphAddKernelNode_v2(&made, graph, after.data(), after.size(), &node.params),
              CUDA_SUCCESS);
    return made;
  }
  CUgraphNode empty_node(CUgraph graph, std::vector<CUgraphNode> after = {}) {
    CUgraphNode made = nullptr;
    EXPECT_EQ(cuGraphAddEmptyNode(&made, graph, after.data(), after.size()), CUDA_SUCCESS);
    return made;
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec made = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&made, graph, 0), CUDA_SUCCESS);
    return made;
  }
  void run(CUgraphExec exec) {
    ASSERT_EQ(cuGraphLaunch(exec, s_), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamSynchronize(s_), CUDA_SUCCESS);
  }

  CUstream s_ = nullptr;
  CUgraph graph_ = nullptr;
};

}  // namespace softgpu::driver
