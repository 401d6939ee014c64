// Memory nodes, added explicitly and captured, and graphs over unmapped memory. Results of invalid
// calls are those of driver 580 on an H200.
#include "tests/unit/softgpu/driver/graph_fixture.h"

namespace softgpu::driver {
namespace {

class GraphMemoryTest : public GraphFixture {};

TEST_F(GraphMemoryTest, MemoryNodes) {
  CUDA_MEM_ALLOC_NODE_PARAMS allocate{};
  allocate.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocate.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocate.poolProps.location.id = device_;
  allocate.bytesize = 1024;
  CUgraphNode allocated = nullptr, freed = nullptr, again = nullptr;
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {device_}},
                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  allocate.accessDescs = &access;
  allocate.accessDescCount = 1;
  CUDA_OK(cuGraphAddMemAllocNode(&allocated, graph_, nullptr, 0, &allocate));
  ASSERT_NE(allocate.dptr, 0u);
  CUDA_MEM_ALLOC_NODE_PARAMS back{};
  CUDA_OK(cuGraphMemAllocNodeGetParams(allocated, &back));
  EXPECT_EQ(back.dptr, allocate.dptr);
  EXPECT_EQ(back.bytesize, 1024u);
  ASSERT_EQ(back.accessDescCount, 1u);
  EXPECT_EQ(back.accessDescs[0].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUgraphNode written = kernel(graph_, set_, allocate.dptr, 5, {allocated});
  const CUgraphNode copied = kernel(graph_, copy_, word(0), allocate.dptr, {written});
  CUDA_OK(cuGraphAddMemFreeNode(&freed, graph_, &copied, 1, allocate.dptr));
  EXPECT_EQ(cuGraphAddMemFreeNode(&again, graph_, &copied, 1, allocate.dptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroyNode(allocated), CUDA_ERROR_NOT_SUPPORTED);
  CUgraph clone = nullptr;
  EXPECT_EQ(cuGraphClone(&clone, graph_), CUDA_ERROR_NOT_SUPPORTED);
  CUgraphExec exec = instantiate(graph_), second = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph_, 0), CUDA_ERROR_NOT_SUPPORTED);
  for (int i = 0; i < 3; ++i) {
    write(0, 0);
    run(exec);
    EXPECT_EQ(read(0), 5u);
  }
  CUDA_OK(cuGraphExecDestroy(exec));
  exec = instantiate(graph_);
}

TEST_F(GraphMemoryTest, MemoryThatOutlivesTheLaunchMustBeFreedBeforeTheNext) {
  CUDA_MEM_ALLOC_NODE_PARAMS allocate{};
  allocate.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocate.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocate.poolProps.location.id = device_;
  allocate.bytesize = 1024;
  CUgraphNode allocated = nullptr;
  CUDA_OK(cuGraphAddMemAllocNode(&allocated, graph_, nullptr, 0, &allocate));
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphLaunch(exec, s_));
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(set(s_, allocate.dptr, 4));
  CUDA_OK(copy(s_, word(0), allocate.dptr));
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(0), 4u);
  CUDA_OK(cuMemFree_v2(allocate.dptr));
  EXPECT_EQ(cuMemFreeAsync(allocate.dptr, s_), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuMemFreeAsync(allocate.dptr, s_));
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuMemFreeAsync(allocate.dptr, s_));
  CUDA_OK(cuStreamSynchronize(s_));
}

TEST_F(GraphMemoryTest, ARefusedLaunchAllocatesNothing) {
  CUDA_MEM_ALLOC_NODE_PARAMS first{};
  first.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  first.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  first.bytesize = 1024;
  CUDA_MEM_ALLOC_NODE_PARAMS second = first;
  CUgraphNode before = nullptr, after = nullptr;
  CUDA_OK(cuGraphAddMemAllocNode(&before, graph_, nullptr, 0, &first));
  CUDA_OK(cuGraphAddMemAllocNode(&after, graph_, &before, 1, &second));
  const CUgraphExec exec = instantiate(graph_);
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuMemFreeAsync(first.dptr, s_));
  EXPECT_EQ(cuGraphLaunch(exec, s_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(first.dptr, s_), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemFreeAsync(second.dptr, s_));
  CUDA_OK(cuGraphLaunch(exec, s_));
  CUDA_OK(cuMemFreeAsync(first.dptr, s_));
  CUDA_OK(cuMemFreeAsync(second.dptr, s_));
  CUDA_OK(cuStreamSynchronize(s_));
}

TEST_F(GraphMemoryTest, MemoryThatAnotherGraphFreesMayBeAllocatedAgain) {
  CUDA_MEM_ALLOC_NODE_PARAMS allocate{};
  allocate.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocate.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  allocate.bytesize = 1024;
  CUgraphNode allocated = nullptr, freed = nullptr;
  CUDA_OK(cuGraphAddMemAllocNode(&allocated, graph_, nullptr, 0, &allocate));
  CUgraph other = nullptr;
  CUDA_OK(cuGraphCreate(&other, 0));
  CUDA_OK(cuGraphAddMemFreeNode(&freed, other, nullptr, 0, allocate.dptr));
  const CUgraphExec allocating = instantiate(graph_), freeing = instantiate(other);
  for (uint32_t i = 1; i <= 2; ++i) {
    CUDA_OK(cuGraphLaunch(allocating, s_));
    EXPECT_EQ(cuGraphLaunch(allocating, s_), CUDA_ERROR_INVALID_VALUE);
    CUDA_OK(set(s_, allocate.dptr, i));
    CUDA_OK(copy(s_, word(0), allocate.dptr));
    CUDA_OK(cuGraphLaunch(freeing, s_));
    EXPECT_EQ(cuMemFreeAsync(allocate.dptr, s_), CUDA_ERROR_INVALID_VALUE);
  }
  CUDA_OK(cuStreamSynchronize(s_));
  EXPECT_EQ(read(0), 2u);
}

TEST_F(GraphMemoryTest, AnExecutableFromBeforeTheMemoryNodesDoesNotCount) {
  empty_node(graph_);
  const CUgraphExec before = instantiate(graph_);
  CUDA_MEM_ALLOC_NODE_PARAMS allocate{};
  allocate.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocate.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  allocate.bytesize = 1024;
  CUgraphNode allocated = nullptr;
  CUDA_OK(cuGraphAddMemAllocNode(&allocated, graph_, nullptr, 0, &allocate));
  instantiate(graph_);
  CUDA_OK(cuGraphExecDestroy(before));
  CUgraphExec second = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&second, graph_, 0), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(GraphMemoryTest, FreeNodesAreForMemoryOfGraphs) {
  CUdeviceptr plain = 0, pooled = 0;
  CUDA_OK(cuMemAlloc_v2(&plain, 64));
  CUDA_OK(cuMemAllocAsync(&pooled, 64, s_));
  for (const CUdeviceptr address : {CUdeviceptr{0}, plain, pooled, word(0)}) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddMemFreeNode(&node, graph_, nullptr, 0, address), CUDA_ERROR_INVALID_VALUE);
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    params.free.dptr = address;
    EXPECT_EQ(cuGraphAddNode_v2(&node, graph_, nullptr, nullptr, 0, &params),
              CUDA_ERROR_INVALID_VALUE);
  }
  CUDA_OK(cuMemFreeAsync(pooled, s_));
}

TEST_F(GraphMemoryTest, CapturedAllocationsRunLikeMemoryNodes) {
  CUdeviceptr memory = 0;
  CUDA_OK(cuStreamBeginCapture_v2(s_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUDA_OK(cuMemAllocAsync(&memory, 4096, s_));
  CUDA_OK(set(s_, memory, 3));
  CUDA_OK(copy(s_, word(0), memory));
  CUDA_OK(cuMemFreeAsync(memory, s_));
  EXPECT_EQ(cuMemFreeAsync(memory, s_), CUDA_ERROR_INVALID_VALUE);
  CUgraph graph = nullptr;
  CUDA_OK(cuStreamEndCapture(s_, &graph));
  CUgraphNode allocated = nullptr;
  size_t count = 1;
  CUDA_OK(cuGraphGetRootNodes(graph, &allocated, &count));
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  CUDA_OK(cuGraphMemAllocNodeGetParams(allocated, &params));
  EXPECT_EQ(params.dptr, memory);
  EXPECT_EQ(params.bytesize, 4096u);
  EXPECT_EQ(params.poolProps.allocType, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(params.poolProps.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(params.poolProps.location.id, device_);
  const CUgraphExec exec = instantiate(graph);
  for (int i = 0; i < 3; ++i) {
    write(0, 0);
    run(exec);
    EXPECT_EQ(read(0), 3u);
  }
}

// A graph with one node over two pages, the second of which is unmapped when it runs. On hardware
// each test needs its own process, because a fault ends all contexts of the process.
class GraphOfLostMemoryTest : public GraphFixture {
 protected:
  static constexpr size_t kPage = size_t{2} << 20;
  void SetUp() override {
    GraphFixture::SetUp();
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    CUDA_OK(cuMemAddressReserve(&pages_, 2 * kPage, 0, 0, 0));
    for (const CUdeviceptr page : {pages_, pages_ + kPage}) {
      CUmemGenericAllocationHandle handle = 0;
      CUDA_OK(cuMemCreate(&handle, kPage, &prop, 0));
      CUDA_OK(cuMemMap(page, kPage, 0, handle, 0));
      CUDA_OK(cuMemRelease(handle));
    }
    const CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUDA_OK(cuMemSetAccess(pages_, 2 * kPage, &access, 1));
    CUDA_OK(cuMemAlloc_v2(&whole_, 2 * kPage));
    CUDA_OK(cuStreamBeginCapture_v2(s_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  void expect_fault() {
    CUgraph graph = nullptr;
    CUDA_OK(cuStreamEndCapture(s_, &graph));
    const CUgraphExec exec = instantiate(graph);
    run(exec);
    CUDA_OK(cuMemUnmap(pages_ + kPage, kPage));
    CUDA_OK(cuGraphLaunch(exec, s_));
    EXPECT_EQ(cuStreamSynchronize(s_), CUDA_ERROR_ILLEGAL_ADDRESS);
    CUDA_OK(cuMemUnmap(pages_, kPage));
    CUDA_OK(cuMemAddressFree(pages_, 2 * kPage));
  }
  CUdeviceptr pages_ = 0, whole_ = 0;
};

TEST_F(GraphOfLostMemoryTest, FillsFault) {
  CUDA_OK(cuMemsetD8Async(pages_, 1, 2 * kPage, s_));
  expect_fault();
}

TEST_F(GraphOfLostMemoryTest, CopiesToItFault) {
  CUDA_OK(cuMemcpyAsync(pages_, whole_, 2 * kPage, s_));
  expect_fault();
}

TEST_F(GraphOfLostMemoryTest, CopiesFromItFault) {
  CUDA_OK(cuMemcpyAsync(whole_, pages_, 2 * kPage, s_));
  expect_fault();
}

}  // namespace
}  // namespace softgpu::driver
