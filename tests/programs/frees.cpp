// Frees memory in every way that CUDA has, also null. After a refused call, the memory, the pool,
// the node and the graph exist as before, and can be used and freed. At the end: cases that no
// documentation describes, with the results of driver 580.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <cuda.h>

#include "driver_checks.h"

namespace {

constexpr size_t kBytes = 1 << 20;

void show(const char* what, CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::printf("%-44s %s\n", what, name);
}

// The driver knows the memory, and the memory can be written and read.
void check_usable(CUdeviceptr memory, CUstream stream) {
  unsigned word = 0;
  CU(cuMemsetD32Async(memory, 77, kBytes / 4, stream));
  CU(cuMemcpyDtoHAsync(&word, memory + kBytes - 4, sizeof word, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(word == 77);
  unsigned type = 0;
  CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
  CHECK(type == CU_MEMORYTYPE_DEVICE);
}

CUdeviceptr allocate() {
  CUdeviceptr memory = 0;
  CU(cuMemAlloc(&memory, kBytes));
  return memory;
}

CUdeviceptr allocate_async(CUstream stream) {
  CUdeviceptr memory = 0;
  CU(cuMemAllocAsync(&memory, kBytes, stream));
  return memory;
}

void nothing(CUstream stream) {
  show("free nothing", cuMemFree(0));
  show("free nothing of the host", cuMemFreeHost(nullptr));
  for (const CUstream s : {stream, CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    show("free nothing in stream order", cuMemFreeAsync(0, s));
  }
}

void in_stream_order(CUstream stream, CUstream other) {
  // Memory of cuMemAlloc, used until the stream frees it.
  for (int round = 0; round < 20; ++round) {
    const CUstream in = round % 2 ? stream : nullptr;
    const CUdeviceptr memory = allocate();
    check_usable(memory, in);
    CU(cuMemsetD8Async(memory, 1, kBytes, in));
    CU(cuMemFreeAsync(memory, in));
  }
  CUdeviceptr pitched;
  size_t pitch = 0;
  CU(cuMemAllocPitch(&pitched, &pitch, 100, 3, 4));
  CU(cuMemFreeAsync(pitched, stream));
  // Memory of a pool: freed in another stream after an event, and by cuMemFree.
  CUevent event;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr pooled = allocate_async(stream);
  check_usable(pooled, stream);
  CU(cuEventRecord(event, stream));
  CU(cuStreamWaitEvent(other, event, 0));
  CU(cuMemFreeAsync(pooled, other));
  pooled = allocate_async(stream);
  check_usable(pooled, stream);
  CU(cuMemFree(pooled));
  CU(cuStreamSynchronize(stream));
  CU(cuStreamSynchronize(other));
  CU(cuEventDestroy(event));
  std::puts("in stream order");
}

// A refused call changes nothing.
void refused(CUcontext context, CUstream stream) {
  const CUdeviceptr plain = allocate(), pooled = allocate_async(stream);
  for (const CUdeviceptr memory : {plain, pooled}) {
    show("free within", cuMemFreeAsync(memory + 512, stream));
    // The default stream belongs to the current context.
    CU(cuCtxSetCurrent(nullptr));
    show("free without a context", cuMemFreeAsync(memory, nullptr));
    CU(cuCtxSetCurrent(context));
    check_usable(memory, stream);
    CU(cuMemFreeAsync(memory, stream));
    CU(cuStreamSynchronize(stream));
  }
  void* host = nullptr;
  CU(cuMemAllocHost(&host, 4096));
  show("free page-locked memory", cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(host), stream));
  CU(cuMemFreeHost(host));
}

void refused_in_a_capture(CUstream stream, CUstream other) {
  const CUdeviceptr memory = allocate();
  CUgraph graph = nullptr;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  show("free beside a capture", cuMemFree(memory));
  show("  its end", cuStreamEndCapture(stream, &graph));
  CHECK(graph == nullptr);
  check_usable(memory, stream);
  // A graph frees only memory that a graph has allocated.
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  show("free in a capture", cuMemFreeAsync(memory, stream));
  (void)cuStreamEndCapture(stream, &graph);
  if (graph != nullptr) CU(cuGraphDestroy(graph));
  check_usable(memory, other);
  CU(cuMemFree(memory));
}

void refused_objects(CUdevice device, CUstream stream) {
  CUmemoryPool pool;
  CU(cuDeviceGetDefaultMemPool(&pool, device));
  show("destroy a default pool", cuMemPoolDestroy(pool));
  CUdeviceptr memory = 0;
  cuuint64_t threshold = 1;
  CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CU(cuMemAllocFromPoolAsync(&memory, kBytes, pool, stream));
  check_usable(memory, stream);
  CU(cuMemFreeAsync(memory, stream));

  CUgraph graph, inner, child;
  CUgraphNode node, allocation, of_child;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CU(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  params.bytesize = kBytes;
  CU(cuGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &params));
  CU(cuGraphAddMemFreeNode(&node, graph, &allocation, 1, params.dptr));
  show("destroy a node of memory", cuGraphDestroyNode(allocation));
  CU(cuGraphNodeGetType(allocation, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  CU(cuGraphDestroy(graph));

  // A child belongs to its node.
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphCreate(&inner, 0));
  CU(cuGraphAddEmptyNode(&node, inner, nullptr, 0));
  CU(cuGraphAddChildGraphNode(&of_child, graph, nullptr, 0, inner));
  CU(cuGraphDestroy(inner));
  CU(cuGraphChildGraphNodeGetGraph(of_child, &child));
  size_t count = 0;
  CU(cuGraphGetNodes(child, nullptr, &count));
  CHECK(count == 1);
  CU(cuGraphDestroy(graph));
}

// Cases that no documentation describes.
void undocumented(CUdevice device, CUcontext context, CUstream stream) {
  CUdeviceptr memory = 5;
  show("allocate no bytes in stream order", cuMemAllocAsync(&memory, 0, stream));
  std::printf("  %s\n", memory == 0 ? "null" : memory == 5 ? "nothing written" : "an address");
  CUdeviceptr managed = 0;
  CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  const CUresult freed = cuMemFreeAsync(managed, stream);
  show("free managed memory in stream order", freed);
  CU(cuStreamSynchronize(stream));
  if (freed != CUDA_SUCCESS) CU(cuMemFree(managed));
  // In a stream of another context of the device.
  CUcontext made;
  CUstream of_made;
  for (const bool is_pooled : {false, true}) {
    memory = is_pooled ? allocate_async(stream) : allocate();
    CU(cuStreamSynchronize(stream));
    CU(cuCtxCreate(&made, nullptr, 0, device));
    CU(cuStreamCreate(&of_made, CU_STREAM_NON_BLOCKING));
    show(is_pooled ? "free pooled memory, another context" : "free memory, another context",
         cuMemFreeAsync(memory, of_made));
    CU(cuStreamSynchronize(of_made));
    CU(cuStreamDestroy(of_made));
    CU(cuCtxDestroy(made));
    CU(cuCtxSetCurrent(context));
  }
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  show("free nothing in a capture", cuMemFreeAsync(0, stream));
  CUgraph graph = nullptr;
  show("  its end", cuStreamEndCapture(stream, &graph));
  size_t count = 99;
  if (graph) CU(cuGraphGetNodes(graph, nullptr, &count));
  if (graph) CU(cuGraphDestroy(graph));
  std::printf("  %zu nodes\n", count);
  CUgraph outer, inner, child;
  CUgraphNode node;
  CU(cuGraphCreate(&outer, 0));
  CU(cuGraphCreate(&inner, 0));
  CU(cuGraphAddChildGraphNode(&node, outer, nullptr, 0, inner));
  CU(cuGraphChildGraphNodeGetGraph(node, &child));
  show("destroy a child graph", cuGraphDestroy(child));
  CU(cuGraphDestroy(inner));
  // Last, because it may destroy the object that the stream is captured into.
  CUstreamCaptureStatus status;
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  show("destroy what is captured into", cuGraphDestroy(graph));
  show("  its end", cuStreamEndCapture(stream, &graph));
}

}  // namespace

int main() {
  CUdevice device;
  CUcontext context;
  CUstream stream, other;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  nothing(stream);
  in_stream_order(stream, other);
  refused(context, stream);
  refused_in_a_capture(stream, other);
  refused_objects(device, stream);
  undocumented(device, context, stream);
  CU(cuStreamDestroy(stream));
  CU(cuStreamDestroy(other));
  CU(cuDevicePrimaryCtxRelease(device));
}
