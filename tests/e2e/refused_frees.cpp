// A refused call changes nothing: calls with destroyed streams, child graphs, and graphs into which
// a capture records. (Some of these calls CUDA does not refuse, or it leaves their result
// undefined.) Also frees memory in a stream of another device, which may belong to another server.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <cuda.h>

#include "../programs/driver_checks.h"

namespace {

constexpr size_t kBytes = 1 << 20;

void check_usable(CUdeviceptr memory) {
  unsigned word = 0, type = 0;
  CU(cuMemsetD32(memory, 77, kBytes / 4));
  CU(cuMemcpyDtoH(&word, memory + kBytes - 4, sizeof word));
  CHECK(word == 77);
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
}

cuuint64_t used_of_pool(CUdevice device) {
  CUmemoryPool pool;
  cuuint64_t used = 1;
  CU(cuDeviceGetMemPool(&pool, device));
  CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  return used;
}

void streams_that_are_gone() {
  CUstream gone;
  CUdeviceptr plain, pooled;
  CU(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  CU(cuStreamDestroy(gone));
  CU(cuMemAlloc(&plain, kBytes));
  CU(cuMemAllocAsync(&pooled, kBytes, nullptr));
  for (const CUdeviceptr memory : {plain, pooled}) {
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(memory, gone));
    check_usable(memory);
    CU(cuMemFreeAsync(memory, nullptr));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, nullptr));
  }
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(0, gone));
  CU(cuCtxSynchronize());
  CHECK(used_of_pool(0) == 0);
}

void fill_in(CUgraph graph, CUcontext context, CUgraphNode* node, CUdeviceptr memory) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = memory;
  params.elementSize = 4;
  params.value = 5;
  params.width = 4;
  params.height = 1;
  CU(cuGraphAddMemsetNode(node, graph, nullptr, 0, &params, context));
}

// A child graph belongs to its node. A refused cuGraphDestroy leaves it unchanged.
void children(CUcontext context, CUdeviceptr memory) {
  CUgraph outer, inner, child;
  CUgraphNode of_child, fill, found;
  CU(cuGraphCreate(&outer, 0));
  CU(cuGraphCreate(&inner, 0));
  fill_in(inner, context, &fill, memory);
  CU(cuGraphAddChildGraphNode(&of_child, outer, nullptr, 0, inner));
  CU(cuGraphDestroy(inner));
  CU(cuGraphChildGraphNodeGetGraph(of_child, &child));
  size_t count = 1;
  CU(cuGraphGetNodes(child, &found, &count));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(child));
  CUDA_MEMSET_NODE_PARAMS told{};
  CU(cuGraphMemsetNodeGetParams(found, &told));
  CHECK(told.value == 5 && told.dst == memory);
  CU(cuGraphGetNodes(child, nullptr, &count));
  CHECK(count == 1);
  CU(cuGraphDestroy(outer));
}

// A graph into which a stream is captured cannot be destroyed during the capture; nor can its
// nodes.
void captures(CUcontext context, CUdeviceptr memory) {
  CUstream stream;
  CUgraph graph, inner, child, ended;
  CUgraphNode of_child, fill, found;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphCreate(&inner, 0));
  fill_in(inner, context, &fill, memory);
  CU(cuGraphAddChildGraphNode(&of_child, graph, nullptr, 0, inner));
  CU(cuGraphDestroy(inner));
  CU(cuGraphChildGraphNodeGetGraph(of_child, &child));
  size_t count = 1;
  CU(cuGraphGetNodes(child, &found, &count));
  CU(cuStreamBeginCaptureToGraph(stream, graph, &of_child, nullptr, 1,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuGraphDestroy(graph));
  EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuGraphDestroyNode(of_child));
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CU(cuGraphNodeGetType(of_child, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH);
  CU(cuGraphNodeGetType(found, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
  CU(cuMemsetD32Async(memory + 64, 6, 4, stream));
  CU(cuStreamEndCapture(stream, &ended));
  CHECK(ended == graph);
  CUgraphExec executable;
  CU(cuGraphInstantiate(&executable, graph, 0));
  CU(cuGraphLaunch(executable, stream));
  CU(cuStreamSynchronize(stream));
  unsigned words[2] = {};
  CU(cuMemcpyDtoH(&words[0], memory, 4));
  CU(cuMemcpyDtoH(&words[1], memory + 64, 4));
  CHECK(words[0] == 5 && words[1] == 6);
  CU(cuGraphExecDestroy(executable));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
}

// The stream's copies of the memory end before it is freed.
void another_device(CUcontext first, CUdeviceptr scratch_of_second, CUcontext second) {
  CUstream stream;
  CU(cuCtxSetCurrent(second));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 8; ++round) {
    CUdeviceptr memory;
    CU(cuCtxSetCurrent(first));
    if (round % 2) {
      CU(cuMemAlloc(&memory, kBytes));
    } else {
      CU(cuMemAllocAsync(&memory, kBytes, nullptr));
    }
    CU(cuMemsetD32(memory, static_cast<unsigned>(round), kBytes / 4));
    CU(cuCtxSynchronize());
    CU(cuCtxSetCurrent(second));
    const CUstream in = round % 4 < 2 ? stream : nullptr;
    if (round % 2) CU(cuMemcpyPeerAsync(scratch_of_second, second, memory, first, kBytes, in));
    CU(cuMemFreeAsync(memory, in));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, in));
    CU(cuStreamSynchronize(in));
    unsigned word = 99;
    CU(cuMemcpyDtoH(&word, scratch_of_second + kBytes - 4, sizeof word));
    if (round % 2) CHECK(word == static_cast<unsigned>(round));
    CU(cuCtxSetCurrent(first));
    CU(cuCtxSynchronize());
    CHECK(used_of_pool(0) == 0);
  }
  CU(cuStreamDestroy(stream));
}

}  // namespace

int main() {
  CUcontext first, second;
  CUdeviceptr memory, scratch;
  int devices = 0;
  CU(cuInit(0));
  CU(cuDeviceGetCount(&devices));
  CU(cuDevicePrimaryCtxRetain(&first, 0));
  CU(cuCtxSetCurrent(first));
  CU(cuMemAlloc(&memory, kBytes));
  streams_that_are_gone();
  children(first, memory);
  captures(first, memory);
  if (devices > 1) {
    CU(cuDevicePrimaryCtxRetain(&second, 1));
    CU(cuCtxSetCurrent(second));
    CU(cuMemAlloc(&scratch, kBytes));
    another_device(first, scratch, second);
    CU(cuMemFree(scratch));
    CU(cuDevicePrimaryCtxRelease(1));
  }
  CU(cuCtxSetCurrent(first));
  CU(cuMemFree(memory));
  CU(cuDevicePrimaryCtxRelease(0));
}
