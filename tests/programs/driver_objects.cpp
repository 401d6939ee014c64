// Objects of the driver API that programs of the runtime seldom use: pools, virtual memory, the
// structure of graphs, captures, arrays, limits. Every answer is checked; the output shows the
// progress.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#include "driver_checks.h"

namespace {

CUmemLocation first_device() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 0;
  return location;
}

void contexts() {
  size_t value = 0;
  CU(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  CU(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  CHECK(value >= 4096);
  CUfunc_cache cache;
  CU(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  CU(cuCtxGetCacheConfig(&cache));
  size_t free_bytes = 0, total_bytes = 0;
  CU(cuMemGetInfo(&free_bytes, &total_bytes));
  CHECK(total_bytes > 0 && free_bytes <= total_bytes);
  std::puts("contexts");
}

void streams(CUdeviceptr memory) {
  CUstream first, second;
  CU(cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, 0));
  CU(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  CUstreamAttrValue value{};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  CU(cuStreamSetAttribute(first, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CU(cuStreamCopyAttributes(second, first));
  value = {};
  CU(cuStreamGetAttribute(second, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CHECK(value.syncPolicy == CU_SYNC_POLICY_BLOCKING_SYNC);

  CUevent start, stop;
  CU(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&stop, CU_EVENT_DEFAULT));
  CU(cuEventRecord(start, first));
  CU(cuMemsetD32Async(memory, 7, 1024, first));
  CU(cuEventRecord(stop, first));
  CU(cuStreamWaitEvent(second, stop, 0));
  CU(cuStreamSynchronize(second));
  float milliseconds = -1;
  CU(cuEventElapsedTime(&milliseconds, start, stop));
  CHECK(milliseconds >= 0);
  CU(cuEventDestroy(start));
  CU(cuEventDestroy(stop));
  CU(cuStreamDestroy(first));
  CU(cuStreamDestroy(second));
  EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(nullptr, nullptr));
  std::puts("streams");
}

void pools(CUdevice device) {
  CUmemoryPool standard, current;
  CU(cuDeviceGetDefaultMemPool(&standard, device));
  CU(cuDeviceGetMemPool(&current, device));
  CHECK(current == standard);
  cuuint64_t threshold = 1 << 20;
  CU(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  threshold = 0;
  CU(cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  CHECK(threshold == 1 << 20);
  // The attribute is an int: its neighbour must not be written.
  int reuse[2] = {-1, 42};
  CU(cuMemPoolGetAttribute(standard, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, reuse));
  CHECK(reuse[0] >= 0 && reuse[1] == 42);

  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = first_device();
  CUmemoryPool pool;
  CU(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr memory;
  CU(cuMemAllocFromPoolAsync(&memory, 4096, pool, nullptr));
  CU(cuMemsetD8Async(memory, 1, 4096, nullptr));
  CU(cuMemFreeAsync(memory, nullptr));
  CU(cuStreamSynchronize(nullptr));
  CU(cuMemPoolTrimTo(pool, 0));
  CUmemAccess_flags flags;
  CUmemLocation location = first_device();
  CU(cuMemPoolGetAccess(&flags, pool, &location));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CU(cuMemPoolDestroy(pool));
  std::puts("pools");
}

void virtual_memory() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = first_device();
  size_t bytes = 0;
  CU(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(bytes > 0);
  CUmemGenericAllocationHandle handle, again;
  CU(cuMemCreate(&handle, bytes, &properties, 0));
  CUdeviceptr address;
  CU(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CU(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access{};
  access.location = first_device();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CU(cuMemSetAccess(address, bytes, &access, 1));
  unsigned long long flags = 0;
  CU(cuMemGetAccess(&flags, &access.location, address));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CU(cuMemsetD8(address, 5, bytes));
  unsigned char last = 0;
  CU(cuMemcpyDtoH(&last, address + bytes - 1, 1));
  CHECK(last == 5);
  CUmemAllocationProp told{};
  CU(cuMemGetAllocationPropertiesFromHandle(&told, handle));
  CHECK(told.location.type == CU_MEM_LOCATION_TYPE_DEVICE && told.location.id == 0);
  CU(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(address)));
  CU(cuMemRelease(again));
  CU(cuMemUnmap(address, bytes));
  CU(cuMemRelease(handle));
  CU(cuMemAddressFree(address, bytes));
  std::puts("virtual memory");
}

unsigned word_at(CUdeviceptr address) {
  unsigned word = 0;
  CU(cuMemcpyDtoH(&word, address, sizeof(word)));
  return word;
}

void graphs(CUcontext context, CUdeviceptr memory) {
  CUstream stream;
  CUevent first_event, second_event;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&first_event, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&second_event, CU_EVENT_DISABLE_TIMING));

  CUgraph graph;
  CUgraphNode root, fill, record, end;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&root, graph, nullptr, 0));
  CUDA_MEMSET_NODE_PARAMS parameters{};
  parameters.dst = memory;
  parameters.elementSize = 4;
  parameters.value = 9;
  parameters.width = 16;
  parameters.height = 1;
  CU(cuGraphAddMemsetNode(&fill, graph, &root, 1, &parameters, context));
  CU(cuGraphAddEventRecordNode(&record, graph, &fill, 1, first_event));
  const CUgraphNode both[2] = {fill, record};
  CU(cuGraphAddEmptyNode(&end, graph, both, 2));

  size_t count = 0;
  CU(cuGraphGetNodes(graph, nullptr, &count));
  CHECK(count == 4);
  CUgraphNode nodes[8], from[8], to[8];
  count = 8;
  CU(cuGraphGetNodes(graph, nodes, &count));
  CHECK(count == 4 && nodes[4] == nullptr);
  int known = 0;
  for (CUgraphNode node : nodes)
    known += node == root || node == fill || node == record || node == end;
  CHECK(known == 4);
  count = 8;
  CU(cuGraphGetRootNodes(graph, nodes, &count));
  CHECK(count == 1 && nodes[0] == root);
  count = 8;
  CU(cuGraphGetEdges(graph, from, to, nullptr, &count));
  CHECK(count == 4);
  count = 8;
  CU(cuGraphNodeGetDependencies(end, nodes, nullptr, &count));
  CHECK(count == 2);
  count = 8;
  CU(cuGraphNodeGetDependentNodes(root, nodes, nullptr, &count));
  CHECK(count == 1 && nodes[0] == fill);
  CU(cuGraphRemoveDependencies(graph, &fill, &end, nullptr, 1));
  CU(cuGraphAddDependencies(graph, &fill, &end, nullptr, 1));
  CUgraphNodeType type;
  CU(cuGraphNodeGetType(fill, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
  CUDA_MEMSET_NODE_PARAMS told{};
  CU(cuGraphMemsetNodeGetParams(fill, &told));
  CHECK(told.value == 9 && told.dst == memory);
  told.value = 11;
  CU(cuGraphMemsetNodeSetParams(fill, &told));
  CUevent event;
  CU(cuGraphEventRecordNodeGetEvent(record, &event));
  CHECK(event == first_event);
  CU(cuGraphEventRecordNodeSetEvent(record, second_event));

  CUgraph clone;
  CUgraphNode clone_fill;
  CU(cuGraphClone(&clone, graph));
  CU(cuGraphNodeFindInClone(&clone_fill, fill, clone));
  CHECK(clone_fill != fill);
  CU(cuGraphMemsetNodeGetParams(clone_fill, &told));
  CHECK(told.value == 11);

  CUgraphExec executable, other;
  CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CU(cuGraphUpload(executable, stream));
  CU(cuGraphLaunch(executable, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(word_at(memory + 60) == 11);
  told.value = 12;
  CU(cuGraphExecMemsetNodeSetParams(executable, fill, &told, context));
  CU(cuGraphLaunch(executable, stream));
  CU(cuStreamSynchronize(stream));
  CHECK(word_at(memory + 60) == 12);

  CUgraphExecUpdateResultInfo info{};
  CU(cuGraphExecUpdate(executable, clone, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CU(cuGraphDestroyNode(clone_fill));
  EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(executable, clone, &info));
  CHECK(info.result != CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS instantiation{};
  CU(cuGraphInstantiateWithParams(&other, graph, &instantiation));
  CHECK(instantiation.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  cuuint64_t flags = 1;
  CU(cuGraphExecGetFlags(other, &flags));
  CHECK(flags == 0);
  CU(cuGraphExecDestroy(other));
  CU(cuGraphExecDestroy(executable));
  CU(cuGraphDestroy(clone));
  CU(cuGraphDestroy(graph));
  std::puts("graphs");

  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemsetD32Async(memory, 3, 16, stream));
  CUstreamCaptureStatus status;
  cuuint64_t id = 0;
  const CUgraphNode* dependencies = nullptr;
  CU(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, nullptr, &count));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1);
  CU(cuGraphNodeGetType(dependencies[0], &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
  CUgraph captured;
  CU(cuStreamEndCapture(stream, &captured));
  CHECK(captured == graph);
  CU(cuGraphDestroy(captured));
  CU(cuEventDestroy(first_event));
  CU(cuEventDestroy(second_event));
  CU(cuStreamDestroy(stream));
  std::puts("captures");
}

void arrays() {
  CUDA_ARRAY_DESCRIPTOR description{}, told{};
  description.Width = 16;
  description.Height = 4;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 1;
  CUarray array;
  CU(cuArrayCreate(&array, &description));
  CU(cuArrayGetDescriptor(&told, array));
  CHECK(told.Width == 16 && told.Height == 4 && told.Format == CU_AD_FORMAT_FLOAT);
  CU(cuArrayDestroy(array));
  std::puts("arrays");
}

void batches(CUdeviceptr memory) {
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  int first[4] = {1, 2, 3, 4}, second[4] = {5, 6, 7, 8}, result[8] = {};
  CUdeviceptr destinations[2] = {memory, memory + sizeof(first)};
  CUdeviceptr sources[2] = {reinterpret_cast<CUdeviceptr>(first),
                            reinterpret_cast<CUdeviceptr>(second)};
  size_t sizes[2] = {sizeof(first), sizeof(second)};
  size_t starts[1] = {0};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  CU(cuMemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, starts, 1, stream));
  first[0] = second[3] = 0;
  CU(cuStreamSynchronize(stream));
  CU(cuMemcpyDtoH(result, memory, sizeof(result)));
  for (int i = 0; i < 8; ++i) CHECK(result[i] == i + 1);
  EXPECT(CUDA_ERROR_INVALID_VALUE,
         cuMemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, starts, 3, stream));
  CU(cuStreamDestroy(stream));
  std::puts("batches");
}

}  // namespace

int main() {
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuMemAlloc(&memory, 1 << 16));
  contexts();
  streams(memory);
  pools(device);
  virtual_memory();
  graphs(context, memory);
  arrays();
  batches(memory);
  CU(cuMemFree(memory));
  CU(cuCtxSynchronize());
  CU(cuDevicePrimaryCtxRelease(device));
}
