// Every pointer of the driver API that may be null by the documentation is null here. The call must
// succeed, and its other outputs must be right. Gets older versions of functions, and versions for
// per-thread default streams, as the runtime does.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <cuda.h>

#include "driver_checks.h"

namespace {

const char kPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 words[4];
.visible .global .attribute(.managed) .align 4 .u32 shared_words[2];
.visible .entry empty() { ret; }
.visible .entry three(.param .u32 a, .param .u64 b, .param .u32 c) { ret; }
)";

// Returns the function that a program uses if it is built with this version of CUDA.
template <typename Function>
Function version_of(const char* name, int version, bool per_thread = false) {
  void* found = nullptr;
  const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                      : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  CU(cuGetProcAddress(name, &found, version, flags, nullptr));
  CHECK(found != nullptr);
  return reinterpret_cast<Function>(found);
}

void processes() {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  CU(cuGetProcAddress("cuInit", &found, 12000, 0, nullptr));
  CHECK(found != nullptr);
  CU(cuGetProcAddress("cuInit", &found, 12000, 0, &status));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  std::puts("symbols");
}

void contexts(CUdevice device) {
  int least = 1, greatest = 1;
  CU(cuCtxGetStreamPriorityRange(nullptr, nullptr));
  CU(cuCtxGetStreamPriorityRange(&least, nullptr));
  CU(cuCtxGetStreamPriorityRange(nullptr, &greatest));
  CHECK(least == 0 && greatest < 0);
  unsigned version = 0;
  unsigned long long id = 0;
  CU(cuCtxGetApiVersion(nullptr, &version));
  CU(cuCtxGetId(nullptr, &id));
  CHECK(version >= 3010 && id != 0);
  CUcontext made, current;
  CU(cuCtxCreate(&made, nullptr, 0, device));
  CU(cuCtxPopCurrent(nullptr));
  CU(cuCtxGetCurrent(&current));
  CHECK(current != made);
  CU(cuCtxDestroy(made));
  std::puts("contexts");
}

void code(CUmodule* module) {
  CU(cuModuleLoadDataEx(module, kPtx, 0, nullptr, nullptr));
  CUdeviceptr address = 0, again = 0;
  size_t bytes = 0;
  CU(cuModuleGetGlobal(&address, nullptr, *module, "words"));
  CU(cuModuleGetGlobal(nullptr, &bytes, *module, "words"));
  CU(cuModuleGetGlobal(&again, nullptr, *module, "words"));
  CHECK(address != 0 && again == address && bytes == 16);
  CUfunction function;
  CU(cuModuleGetFunction(&function, *module, "three"));
  size_t offset = 99, size = 99;
  CU(cuFuncGetParamInfo(function, 2, &offset, nullptr));
  CHECK(offset == 16);
  CU(cuFuncGetParamInfo(function, 1, &offset, &size));
  CHECK(offset == 8 && size == 8);

  CUlibrary library;
  CUkernel kernel;
  CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetGlobal(&address, nullptr, library, "words"));
  bytes = 0;
  CU(cuLibraryGetGlobal(nullptr, &bytes, library, "words"));
  CHECK(address != 0 && bytes == 16);
  address = bytes = 0;
  CU(cuLibraryGetManaged(&address, nullptr, library, "shared_words"));
  CU(cuLibraryGetManaged(nullptr, &bytes, library, "shared_words"));
  CHECK(address != 0 && bytes == 8);
  CU(cuLibraryGetKernel(&kernel, library, "three"));
  CU(cuKernelGetParamInfo(kernel, 1, &offset, nullptr));
  CHECK(offset == 8);
  CU(cuLibraryUnload(library));
  std::puts("modules and libraries");
}

void launches(CUmodule module, CUstream stream) {
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "empty"));
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr));
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  CU(cuLaunchKernelEx(&config, function, nullptr, nullptr));
  CU(cuLaunchHostFunc(
      stream, [](void* data) { CHECK(data == nullptr); }, nullptr));
  CU(cuStreamSynchronize(stream));
  int grid = 0, block = 0;
  CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0));
  CHECK(grid > 0 && block > 0);
  std::puts("launches");
}

void memory() {
  CUdeviceptr address, base = 0;
  size_t bytes = 0;
  CU(cuMemAlloc(&address, 1 << 20));
  CU(cuMemGetAddressRange(nullptr, nullptr, address + 5));
  CU(cuMemGetAddressRange(&base, nullptr, address + 5));
  CU(cuMemGetAddressRange(nullptr, &bytes, address + 5));
  CHECK(base == address && bytes == 1 << 20);
  CU(cuMemFree(address));
  std::puts("memory");
}

// ---- captures ----------------------------------------------------------------------------------

using Info1 = CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*);
using Info2 = CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                           const CUgraphNode**, size_t*);
using Info3 = CUresult (*)(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                           const CUgraphNode**, const CUgraphEdgeData**, size_t*);

struct CaptureInfo {
  Info1 v1;
  Info2 v2;
  Info3 v3;
};

CaptureInfo capture_info(bool per_thread) {
  const char* const name = "cuStreamGetCaptureInfo";
  return {version_of<Info1>(name, 10010, per_thread), version_of<Info2>(name, 11030, per_thread),
          version_of<Info3>(name, 12030, per_thread)};
}

// Each version with all outputs null except one. The stream is in capture, and depends on `node`.
void each_output(const CaptureInfo& info, CUstream stream, CUgraphNode node) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0, other_id = 1;
  CUgraph graph = nullptr, other_graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 99;
  CU(info.v1(stream, &status, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU(info.v1(stream, &status, &id));
  CU(info.v2(stream, &status, nullptr, nullptr, nullptr, nullptr));
  CU(info.v2(stream, &status, &other_id, nullptr, nullptr, nullptr));
  CHECK(id != 0 && other_id == id);
  CU(info.v2(stream, &status, nullptr, &graph, nullptr, nullptr));
  CU(info.v2(stream, &status, nullptr, nullptr, &nodes, nullptr));
  CHECK(graph != nullptr && nodes != nullptr && nodes[0] == node);
  CU(info.v2(stream, &status, nullptr, nullptr, nullptr, &count));
  CHECK(count == 1);
  status = CU_STREAM_CAPTURE_STATUS_NONE;
  CU(info.v3(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CU(info.v3(stream, &status, &other_id, nullptr, nullptr, nullptr, nullptr));
  CU(info.v3(stream, &status, nullptr, &other_graph, nullptr, nullptr, nullptr));
  CHECK(other_id == id && other_graph == graph);
  nodes = nullptr;
  CU(info.v3(stream, &status, nullptr, nullptr, &nodes, nullptr, nullptr));
  CHECK(nodes != nullptr && nodes[0] == node);
  nodes = nullptr;
  CU(info.v3(stream, &status, nullptr, nullptr, &nodes, &edges, nullptr));
  CHECK(nodes != nullptr && nodes[0] == node && edges != nullptr && edges[0].type == 0);
  count = 99;
  CU(info.v3(stream, &status, nullptr, nullptr, nullptr, nullptr, &count));
  CHECK(count == 1);
  // PyTorch's query when a capture begins.
  CU(info.v3(stream, &status, &other_id, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && other_id == id);
}

void no_capture(const CaptureInfo& info, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CU(info.v1(stream, &status, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CU(info.v2(stream, &status, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CU(info.v3(stream, &status, nullptr, nullptr, nullptr, nullptr, nullptr));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
}

void captures(CUmodule module) {
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUgraph graph, ended;
  CUgraphNode first, second;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  CU(cuGraphAddEmptyNode(&second, graph, nullptr, 0));

  CU(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuStreamUpdateCaptureDependencies(stream, &first, nullptr, 1,
                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  for (const bool per_thread : {false, true}) each_output(capture_info(per_thread), stream, first);
  using Update1 = CUresult (*)(CUstream, CUgraphNode*, size_t, unsigned);
  const auto update = version_of<Update1>("cuStreamUpdateCaptureDependencies", 11030);
  CU(update(stream, nullptr, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CUstreamCaptureStatus status;
  size_t count = 99;
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, &count));
  CHECK(count == 0);
  CU(cuStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0,
                                       CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CU(update(stream, &second, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  CU(cuStreamEndCapture(stream, &ended));
  CHECK(ended == graph);

  // With dependencies, and no data for their edges.
  CU(cuStreamBeginCaptureToGraph(stream, graph, &second, nullptr, 1,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  each_output(capture_info(false), stream, second);
  CU(cuStreamEndCapture(stream, &ended));
  for (const bool per_thread : {false, true}) {
    no_capture(capture_info(per_thread), stream);
    no_capture(capture_info(per_thread), nullptr);
  }

  // The data of an edge must not be lost.
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, "empty"));
  CUDA_KERNEL_NODE_PARAMS params{};
  params.func = function;
  params.gridDimX = params.gridDimY = params.gridDimZ = 1;
  params.blockDimX = params.blockDimY = params.blockDimZ = 1;
  CUgraphNode kernel;
  CU(cuGraphAddKernelNode(&kernel, graph, nullptr, 0, &params));
  CUgraphEdgeData edge{};
  edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  CU(cuStreamBeginCaptureToGraph(stream, graph, &kernel, &edge, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  EXPECT(CUDA_ERROR_LOSSY_QUERY,
         cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, nullptr));
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr, &count));
  CHECK(count == 1);
  CU(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count));
  CHECK(count == 1 && nodes[0] == kernel && edges[0].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
  CU(cuStreamEndCapture(stream, &ended));
  CU(cuGraphDestroy(graph));
  CU(cuStreamDestroy(stream));
  std::puts("captures");
}

// ---- graphs ------------------------------------------------------------------------------------

void graphs(CUdeviceptr memory) {
  CUgraph graph;
  CUgraphNode first, second, any;
  CU(cuGraphCreate(&graph, 0));
  CU(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
  CU(cuGraphAddEmptyNode(&second, graph, nullptr, 0));
  CU(cuGraphAddDependencies(graph, &first, &second, nullptr, 1));
  size_t count = 99;
  CU(cuGraphGetNodes(graph, nullptr, &count));
  CHECK(count == 2);
  CU(cuGraphGetRootNodes(graph, nullptr, &count));
  CHECK(count == 1);
  CU(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  CHECK(count == 1);
  CU(cuGraphNodeGetDependencies(second, nullptr, nullptr, &count));
  CHECK(count == 1);
  CU(cuGraphNodeGetDependentNodes(first, nullptr, nullptr, &count));
  CHECK(count == 1);
  CUgraphNode from[2], to[2];
  CUgraphEdgeData data[2];
  std::memset(data, 0xff, sizeof data);
  count = 2;
  CU(cuGraphGetEdges(graph, from, to, nullptr, &count));
  CHECK(count == 1 && from[0] == first && to[0] == second && from[1] == nullptr);
  count = 2;
  CU(cuGraphGetEdges(graph, from, to, data, &count));
  CHECK(count == 1 && data[0].type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT && data[0].from_port == 0);
  count = 2;
  CU(cuGraphNodeGetDependencies(second, from, nullptr, &count));
  CHECK(count == 1 && from[0] == first);
  count = 2;
  CU(cuGraphNodeGetDependentNodes(first, to, nullptr, &count));
  CHECK(count == 1 && to[0] == second);
  CU(cuGraphRemoveDependencies(graph, &first, &second, nullptr, 1));
  CU(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  CHECK(count == 0);
  CU(cuGraphAddDependencies(graph, nullptr, nullptr, nullptr, 0));

  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_MEMSET;
  params.memset.dst = memory;
  params.memset.elementSize = 4;
  params.memset.value = 21;
  params.memset.width = 4;
  params.memset.height = 1;
  CU(cuGraphAddNode(&any, graph, nullptr, nullptr, 0, &params));
  CU(cuGraphAddNode(&any, graph, &first, nullptr, 1, &params));
  CUDA_HOST_NODE_PARAMS host{};
  host.fn = [](void* pointer) { CHECK(pointer == nullptr); };
  CU(cuGraphAddHostNode(&any, graph, &any, 1, &host));
  CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
  allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  allocation.bytesize = 4096;
  CU(cuGraphAddMemAllocNode(&any, graph, nullptr, 0, &allocation));
  CU(cuGraphAddMemFreeNode(&any, graph, &any, 1, allocation.dptr));

  using Instantiate = CUresult (*)(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
  for (const int version : {10000, 11000}) {
    const auto instantiate = version_of<Instantiate>("cuGraphInstantiate", version);
    CUgraphExec executable;
    CU(instantiate(&executable, graph, nullptr, nullptr, 0));
    CU(cuGraphLaunch(executable, nullptr));
    CU(cuStreamSynchronize(nullptr));
    CU(cuGraphExecDestroy(executable));
  }
  unsigned word = 0;
  CU(cuMemcpyDtoH(&word, memory + 12, sizeof word));
  CHECK(word == 21);
  CU(cuGraphDestroy(graph));
  std::puts("graphs");
}

}  // namespace

int main() {
  CUdevice device;
  CUcontext context;
  CUdeviceptr scratch;
  CUstream stream;
  CUmodule module;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuMemAlloc(&scratch, 4096));
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  processes();
  contexts(device);
  code(&module);
  launches(module, stream);
  memory();
  captures(module);
  graphs(scratch);
  CU(cuModuleUnload(module));
  CU(cuStreamDestroy(stream));
  CU(cuMemFree(scratch));
  CU(cuDevicePrimaryCtxRelease(device));
}
