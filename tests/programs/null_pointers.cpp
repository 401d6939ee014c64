// Results of the functions of the driver API if a required pointer is null. The call must have no
// other effect. Calls that crash a local driver are left out. "written to" marks the calls in which
// a local driver (580) still writes to the other outputs.
#include <cstdio>
#include <cstdlib>

#include <cuda.h>

#include "driver_checks.h"

namespace {

const char kPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 words[4];
.visible .entry three(.param .u32 a, .param .u64 b, .param .u32 c) { ret; }
)";

void announce(const char* what) {
  std::printf("  %-44s ", what);
  std::fflush(stdout);
}

void show(CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::puts(name);
}

#define SHOW(call) (announce(#call), show(call))

void ignore(void*) {}

// The objects that the calls use.
struct World {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUevent event, other_event;
  CUdeviceptr memory;
  CUmodule module;
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  CUmemoryPool pool;
  CUarray array;
  CUgraph graph;
  CUgraphNode empty, fill, host;
  CUgraphExec executable;
};

CUmemLocation first_device() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return location;
}

CUDA_MEMSET_NODE_PARAMS fill_params(CUdeviceptr memory) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = memory;
  params.elementSize = 4;
  params.value = 3;
  params.width = 4;
  params.height = 1;
  return params;
}

void make(World* w) {
  CU(cuInit(0));
  CU(cuDeviceGet(&w->device, 0));
  CU(cuDevicePrimaryCtxRetain(&w->context, w->device));
  CU(cuCtxSetCurrent(w->context));
  CU(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&w->event, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&w->other_event, CU_EVENT_DEFAULT));
  CU(cuMemAlloc(&w->memory, 4096));
  CU(cuModuleLoadData(&w->module, kPtx));
  CU(cuModuleGetFunction(&w->function, w->module, "three"));
  CU(cuLibraryLoadData(&w->library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&w->kernel, w->library, "three"));
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = first_device();
  CU(cuMemPoolCreate(&w->pool, &properties));
  CUDA_ARRAY_DESCRIPTOR description{};
  description.Width = 16;
  description.Height = 4;
  description.Format = CU_AD_FORMAT_FLOAT;
  description.NumChannels = 1;
  CU(cuArrayCreate(&w->array, &description));
  CU(cuGraphCreate(&w->graph, 0));
  CU(cuGraphAddEmptyNode(&w->empty, w->graph, nullptr, 0));
  const CUDA_MEMSET_NODE_PARAMS params = fill_params(w->memory);
  CU(cuGraphAddMemsetNode(&w->fill, w->graph, nullptr, 0, &params, w->context));
  CUDA_HOST_NODE_PARAMS host{};
  host.fn = ignore;
  CU(cuGraphAddHostNode(&w->host, w->graph, nullptr, 0, &host));
  CU(cuGraphInstantiate(&w->executable, w->graph, 0));
}

void devices(const World& w) {
  std::puts("devices");
  int number = -7;
  SHOW(cuDriverGetVersion(nullptr));
  SHOW(cuDeviceGet(nullptr, 0));
  SHOW(cuDeviceGetCount(nullptr));
  SHOW(cuDeviceGetName(nullptr, 64, w.device));
  SHOW(cuDeviceGetUuid(nullptr, w.device));
  SHOW(cuDeviceTotalMem(nullptr, w.device));
  SHOW(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, w.device));
  SHOW(cuDeviceGetPCIBusId(nullptr, 64, w.device));
  SHOW(cuDeviceGetByPCIBusId(nullptr, "0000:00:00.0"));
  SHOW(cuDeviceGetByPCIBusId(&number, nullptr));
  SHOW(cuDeviceCanAccessPeer(nullptr, w.device, w.device));
  SHOW(cuDeviceGetDefaultMemPool(nullptr, w.device));
  SHOW(cuDeviceGetMemPool(nullptr, w.device));
  SHOW(cuDeviceGetGraphMemAttribute(w.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, nullptr));
  CHECK(number == -7);
}

void contexts(const World& w) {
  std::puts("contexts");
  SHOW(cuDevicePrimaryCtxRetain(nullptr, w.device));
  SHOW(cuCtxCreate(nullptr, nullptr, 0, w.device));
  SHOW(cuCtxGetCurrent(nullptr));
  SHOW(cuCtxGetDevice(nullptr));
  SHOW(cuCtxGetFlags(nullptr));
  SHOW(cuCtxGetId(w.context, nullptr));
  SHOW(cuCtxGetApiVersion(w.context, nullptr));
  SHOW(cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE));
  SHOW(cuCtxGetCacheConfig(nullptr));
  CUcontext current;
  CU(cuCtxGetCurrent(&current));
  CHECK(current == w.context);
}

void code(const World& w) {
  std::puts("modules and libraries");
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  CUdeviceptr address = 5;
  size_t bytes = 5;
  SHOW(cuModuleLoadData(nullptr, kPtx));
  SHOW(cuModuleLoadData(&module, nullptr));
  SHOW(cuModuleLoad(&module, nullptr));
  SHOW(cuModuleGetFunction(nullptr, w.module, "three"));
  SHOW(cuModuleGetFunction(&function, w.module, nullptr));
  SHOW(cuModuleGetGlobal(nullptr, nullptr, w.module, "words"));
  SHOW(cuModuleGetGlobal(&address, &bytes, w.module, nullptr));
  address = bytes = 5;  // written to
  SHOW(cuModuleGetFunctionCount(nullptr, w.module));
  SHOW(cuModuleEnumerateFunctions(nullptr, 1, w.module));
  SHOW(cuLibraryLoadData(nullptr, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryLoadData(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
  SHOW(cuLibraryGetKernel(nullptr, w.library, "three"));
  SHOW(cuLibraryGetKernel(&kernel, w.library, nullptr));
  SHOW(cuLibraryGetModule(nullptr, w.library));
  SHOW(cuLibraryGetGlobal(nullptr, nullptr, w.library, "words"));
  SHOW(cuLibraryGetKernelCount(nullptr, w.library));
  SHOW(cuLibraryEnumerateKernels(nullptr, 1, w.library));
  SHOW(cuKernelGetFunction(nullptr, w.kernel));
  SHOW(cuKernelGetLibrary(nullptr, w.kernel));
  SHOW(cuKernelGetName(nullptr, w.kernel));
  const char* name = kPtx;
  SHOW(cuKernelGetName(&name, nullptr));
  SHOW(cuFuncGetName(nullptr, w.function));
  SHOW(cuFuncGetName(&name, nullptr));
  SHOW(cuKernelGetParamInfo(w.kernel, 0, nullptr, &bytes));
  SHOW(cuFuncGetParamInfo(w.function, 0, nullptr, &bytes));
  SHOW(cuFuncGetModule(nullptr, w.function));
  SHOW(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, w.function));
  SHOW(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, w.kernel, w.device));
  SHOW(cuFuncIsLoaded(nullptr, w.function));
  SHOW(cuLaunchKernelEx(nullptr, w.function, nullptr, nullptr));
  SHOW(cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, w.function, 32, 0));
  CHECK(module == nullptr && library == nullptr && function == nullptr && kernel == nullptr);
  CHECK(address == 5 && bytes == 5 && name == kPtx);
}

void memory(const World& w) {
  std::puts("memory");
  CUdeviceptr address = 5;
  size_t bytes = 5;
  unsigned flags = 5;
  void* pointer = &flags;
  SHOW(cuMemAlloc(nullptr, 64));
  SHOW(cuMemAllocPitch(nullptr, &bytes, 64, 2, 4));
  SHOW(cuMemAllocPitch(&address, nullptr, 64, 2, 4));
  address = bytes = 5;  // written to
  SHOW(cuMemAllocHost(nullptr, 64));
  SHOW(cuMemHostAlloc(nullptr, 64, 0));
  SHOW(cuMemAllocManaged(nullptr, 64, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocAsync(nullptr, 64, w.stream));
  SHOW(cuMemAllocFromPoolAsync(nullptr, 64, w.pool, w.stream));
  SHOW(cuMemAllocFromPoolAsync(&address, 64, nullptr, w.stream));
  address = 5;  // written to
  SHOW(cuMemHostRegister(nullptr, 4096, 0));
  SHOW(cuMemHostUnregister(nullptr));
  SHOW(cuMemHostGetDevicePointer(nullptr, &flags, 0));
  SHOW(cuMemHostGetDevicePointer(&address, nullptr, 0));
  address = 5;  // written to
  SHOW(cuMemHostGetFlags(nullptr, &flags));
  SHOW(cuMemHostGetFlags(&flags, nullptr));
  SHOW(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, w.memory));
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  SHOW(cuPointerGetAttributes(1, nullptr, &pointer, w.memory));
  SHOW(cuPointerGetAttributes(1, &which, nullptr, w.memory));
  SHOW(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, w.memory));
  SHOW(cuMemcpy2D(nullptr));
  SHOW(cuMemcpy3D(nullptr));
  SHOW(cuMemcpyBatchAsync(nullptr, nullptr, nullptr, 1, nullptr, nullptr, 0, w.stream));
  SHOW(cuArrayCreate(nullptr, nullptr));
  SHOW(cuArrayGetDescriptor(nullptr, w.array));
  SHOW(cuArray3DGetDescriptor(nullptr, w.array));
  SHOW(cuIpcGetMemHandle(nullptr, w.memory));
  CHECK(address == 5 && bytes == 5 && flags == 5);
}

void pools(const World& w) {
  std::puts("pools and virtual memory");
  CUmemoryPool pool = nullptr;
  CUmemLocation location = first_device();
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemGenericAllocationHandle handle = 5;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = first_device();
  SHOW(cuMemPoolCreate(&pool, nullptr));
  SHOW(cuMemPoolDestroy(nullptr));
  SHOW(cuMemPoolGetAttribute(w.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr));
  SHOW(cuMemPoolSetAccess(w.pool, nullptr, 1));
  SHOW(cuMemPoolGetAccess(nullptr, w.pool, &location));
  SHOW(cuMemPoolGetAccess(&access, w.pool, nullptr));
  SHOW(cuMemPoolTrimTo(nullptr, 0));
  SHOW(cuMemAddressReserve(nullptr, 2 << 20, 0, 0, 0));
  SHOW(cuMemCreate(nullptr, 2 << 20, &prop, 0));
  SHOW(cuMemCreate(&handle, 2 << 20, nullptr, 0));
  SHOW(cuMemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CHECK(pool == nullptr && handle == 5);
}

void streams(const World& w) {
  std::puts("streams and events");
  SHOW(cuStreamCreate(nullptr, 0));
  SHOW(cuStreamCreateWithPriority(nullptr, 0, 0));
  SHOW(cuStreamGetPriority(w.stream, nullptr));
  SHOW(cuStreamGetFlags(w.stream, nullptr));
  SHOW(cuStreamGetId(w.stream, nullptr));
  SHOW(cuStreamGetDevice(w.stream, nullptr));
  SHOW(cuStreamIsCapturing(w.stream, nullptr));
  const CUgraphEdgeData* edges = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  SHOW(cuStreamGetCaptureInfo(w.stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr));
  CU(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuStreamGetCaptureInfo(w.stream, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr));
  SHOW(cuStreamGetCaptureInfo(w.stream, &status, nullptr, nullptr, nullptr, &edges, nullptr));
  SHOW(cuStreamUpdateCaptureDependencies(w.stream, nullptr, nullptr, 1, 0));
  CUgraph graph = nullptr;
  CU(cuStreamEndCapture(w.stream, &graph));
  CU(cuGraphDestroy(graph));
  SHOW(cuLaunchHostFunc(w.stream, nullptr, nullptr));
  SHOW(cuEventCreate(nullptr, 0));
  CU(cuEventRecord(w.event, w.stream));
  CU(cuEventRecord(w.other_event, w.stream));
  CU(cuStreamSynchronize(w.stream));
  SHOW(cuEventElapsedTime(nullptr, w.event, w.other_event));
}

void graphs(const World& w) {
  std::puts("graphs");
  CUgraphNode node = nullptr, nodes[4];
  CUgraphExec executable = nullptr;
  CUgraphEdgeData data[4];
  size_t count = 4;
  const CUDA_MEMSET_NODE_PARAMS fill = fill_params(w.memory);
  SHOW(cuGraphCreate(nullptr, 0));
  SHOW(cuGraphClone(nullptr, w.graph));
  SHOW(cuGraphAddEmptyNode(nullptr, w.graph, nullptr, 0));
  SHOW(cuGraphAddEmptyNode(&node, w.graph, nullptr, 1));
  SHOW(cuGraphAddMemsetNode(nullptr, w.graph, nullptr, 0, &fill, w.context));
  SHOW(cuGraphAddMemsetNode(&node, w.graph, nullptr, 0, nullptr, w.context));
  SHOW(cuGraphAddMemcpyNode(&node, w.graph, nullptr, 0, nullptr, w.context));
  SHOW(cuGraphAddKernelNode(&node, w.graph, nullptr, 0, nullptr));
  SHOW(cuGraphAddHostNode(&node, w.graph, nullptr, 0, nullptr));
  SHOW(cuGraphAddMemAllocNode(&node, w.graph, nullptr, 0, nullptr));
  SHOW(cuGraphAddChildGraphNode(&node, w.graph, nullptr, 0, nullptr));
  SHOW(cuGraphAddNode(&node, w.graph, nullptr, nullptr, 0, nullptr));
  SHOW(cuGraphMemsetNodeGetParams(w.fill, nullptr));
  SHOW(cuGraphMemsetNodeSetParams(w.fill, nullptr));
  SHOW(cuGraphHostNodeGetParams(w.host, nullptr));
  SHOW(cuGraphHostNodeSetParams(w.host, nullptr));
  SHOW(cuGraphNodeGetType(w.fill, nullptr));
  SHOW(cuGraphGetNodes(w.graph, nodes, nullptr));
  SHOW(cuGraphGetRootNodes(w.graph, nodes, nullptr));
  SHOW(cuGraphGetEdges(w.graph, nodes, nodes, nullptr, nullptr));
  SHOW(cuGraphGetEdges(w.graph, nullptr, nullptr, data, &count));
  SHOW(cuGraphNodeGetDependencies(w.fill, nodes, nullptr, nullptr));
  SHOW(cuGraphNodeGetDependencies(w.fill, nullptr, data, &count));
  SHOW(cuGraphNodeGetDependentNodes(w.fill, nullptr, data, &count));
  SHOW(cuGraphAddDependencies(w.graph, nullptr, nullptr, nullptr, 1));
  SHOW(cuGraphInstantiate(nullptr, w.graph, 0));
  SHOW(cuGraphInstantiateWithParams(&executable, w.graph, nullptr));
  SHOW(cuGraphExecGetFlags(w.executable, nullptr));
  SHOW(cuGraphNodeGetEnabled(w.executable, w.fill, nullptr));
  SHOW(cuGraphExecMemsetNodeSetParams(w.executable, w.fill, nullptr, w.context));
  SHOW(cuGraphDebugDotPrint(w.graph, nullptr, 0));
  CUuserObject object = nullptr;
  SHOW(cuUserObjectCreate(nullptr, nullptr, ignore, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  SHOW(cuUserObjectCreate(&object, nullptr, nullptr, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CHECK(node == nullptr && executable == nullptr && object == nullptr);
  CU(cuGraphGetNodes(w.graph, nullptr, &count));
  CHECK(count == 3);
}

// Calls whose documentation does not mention null.
void undocumented(const World& w) {
  std::puts("undocumented");
  size_t bytes = 0;
  unsigned flags = 0;
  int active = 0;
  CUmodule module = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  SHOW(cuMemGetInfo(nullptr, &bytes));
  SHOW(cuMemGetInfo(&bytes, nullptr));
  SHOW(cuDevicePrimaryCtxGetState(w.device, nullptr, &active));
  SHOW(cuDevicePrimaryCtxGetState(w.device, &flags, nullptr));
  SHOW(cuStreamGetCtx_v2(w.stream, nullptr, &green));
  SHOW(cuStreamGetCtx_v2(w.stream, &context, nullptr));
  SHOW(cuGraphExecUpdate(w.executable, w.graph, nullptr));
  SHOW(cuModuleLoadDataEx(&module, kPtx, 1, nullptr, nullptr));
  CUgraphNode nodes[4];
  size_t count = 4;
  SHOW(cuGraphGetEdges(w.graph, nodes, nullptr, nullptr, &count));
  CUfunction functions[1];
  SHOW(cuModuleEnumerateFunctions(functions, 0, w.module));
  CUpointer_attribute which = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* nowhere = nullptr;
  SHOW(cuPointerGetAttributes(1, &which, &nowhere, w.memory));
  int grid = 0, block = 0;
  SHOW(cuOccupancyMaxPotentialBlockSize(nullptr, &block, w.function, nullptr, 0, 0));
  SHOW(cuOccupancyMaxPotentialBlockSize(&grid, nullptr, w.function, nullptr, 0, 0));
  CU(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SHOW(cuStreamEndCapture(w.stream, nullptr));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CU(cuStreamIsCapturing(w.stream, &status));
  std::printf("  it %s\n", status == CU_STREAM_CAPTURE_STATUS_NONE ? "has ended" : "goes on");
}

}  // namespace

int main() {
  World world{};
  make(&world);
  devices(world);
  contexts(world);
  code(world);
  memory(world);
  pools(world);
  streams(world);
  graphs(world);
  undocumented(world);
  CU(cuGraphLaunch(world.executable, world.stream));
  CU(cuStreamSynchronize(world.stream));
}
