// What stands in for a driver function where the driver's own interface cannot cross: kernel nodes
// take their parameters packed, and capture information is copied out of the driver's arrays.
#include <algorithm>

#include "api/driver_table.h"
#include "api/server_handlers.h"
#include "api/stubs/server.h"

namespace rcuda::server {
namespace {

// Kernel node parameters from their parts. `extra` has to outlive the driver call.
struct KernelNode {
  KernelNode(const CUDA_KERNEL_NODE_PARAMS& shape, CUfunction function, CUkernel kernel,
             CUcontext context, const void* parameters, size_t parameter_bytes)
      : parameter_bytes_(parameter_bytes),
        extra_{CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<void*>(parameters),
               CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes_, CU_LAUNCH_PARAM_END},
        params(shape) {
    params.func = function;
    params.kern = kernel;
    params.ctx = context;
    params.kernelParams = nullptr;
    params.extra = extra_;
  }
  KernelNode(const KernelNode&) = delete;
  KernelNode& operator=(const KernelNode&) = delete;

 private:
  size_t parameter_bytes_;
  void* extra_[5];

 public:
  CUDA_KERNEL_NODE_PARAMS params;
};

// Whether the driver knows the memory that one side of a copy touches: its first byte and its last.
// The driver would read or write any other address of this process with the CPU.
bool is_known(Executor& executor, CUmemorytype type, const void* host, CUdeviceptr device,
              size_t x_bytes, size_t y, size_t z, size_t pitch, size_t height,
              const CUDA_MEMCPY3D& copy) {
  if (type == CU_MEMORYTYPE_ARRAY) return true;
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) return true;
  using Wide = unsigned __int128;
  const Wide base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
  const Wide row = pitch != 0 ? pitch : copy.WidthInBytes;
  const Wide rows = height != 0 ? height : copy.Height;
  constexpr uint64_t kLimit = 1ull << 40;  // three such numbers multiplied fit
  for (const uint64_t number :
       {uint64_t{x_bytes}, uint64_t{y}, uint64_t{z}, uint64_t{pitch}, uint64_t{height},
        uint64_t{copy.WidthInBytes}, uint64_t{copy.Height}, uint64_t{copy.Depth}}) {
    if (number > kLimit) return false;
  }
  const Wide first = base + (Wide{z} * rows + y) * row + x_bytes;
  const Wide last = base + ((Wide{z} + copy.Depth - 1) * rows + y + copy.Height - 1) * row +
                    x_bytes + copy.WidthInBytes - 1;
  const auto ask = driver(executor).cuPointerGetAttribute;
  if (ask == nullptr || last > ~uint64_t{0}) return false;
  unsigned found = 0;
  return ask(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, static_cast<CUdeviceptr>(first)) ==
             CUDA_SUCCESS &&
         ask(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, static_cast<CUdeviceptr>(last)) ==
             CUDA_SUCCESS;
}

bool is_known(Executor& executor, const CUDA_MEMCPY3D& copy) {
  return is_known(executor, copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes,
                  copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight, copy) &&
         is_known(executor, copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes,
                  copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight, copy);
}

}  // namespace

CUresult serve_cuGraphAddMemcpyNode(Executor& executor, CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies, size_t numDependencies,
                                    const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  const auto add = driver(executor).cuGraphAddMemcpyNode;
  if (add == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (!is_known(executor, *copyParams)) return CUDA_ERROR_INVALID_VALUE;
  return add(phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx);
}

CUresult serve_cuGraphMemcpyNodeSetParams(Executor& executor, CUgraphNode hNode,
                                          const CUDA_MEMCPY3D* nodeParams) {
  const auto set = driver(executor).cuGraphMemcpyNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (!is_known(executor, *nodeParams)) return CUDA_ERROR_INVALID_VALUE;
  return set(hNode, nodeParams);
}

CUresult serve_cuGraphExecMemcpyNodeSetParams(Executor& executor, CUgraphExec hGraphExec,
                                              CUgraphNode hNode, const CUDA_MEMCPY3D* copyParams,
                                              CUcontext ctx) {
  const auto set = driver(executor).cuGraphExecMemcpyNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (!is_known(executor, *copyParams)) return CUDA_ERROR_INVALID_VALUE;
  return set(hGraphExec, hNode, copyParams, ctx);
}

CUresult serve_rcuda_graph_add_kernel_node(Executor& executor, CUgraphNode* node, CUgraph graph,
                                           const CUgraphNode* dependencies, size_t dependency_count,
                                           CUfunction device_function, CUkernel kernel,
                                           CUcontext context, const CUDA_KERNEL_NODE_PARAMS* shape,
                                           const void* parameters, size_t parameter_bytes) {
  const auto add = driver(executor).cuGraphAddKernelNode_v2;
  if (add == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const KernelNode built(*shape, device_function, kernel, context, parameters, parameter_bytes);
  return add(node, graph, dependencies, dependency_count, &built.params);
}

CUresult serve_rcuda_graph_set_kernel_node(Executor& executor, CUgraphNode node,
                                           CUfunction device_function, CUkernel kernel,
                                           CUcontext context, const CUDA_KERNEL_NODE_PARAMS* shape,
                                           const void* parameters, size_t parameter_bytes) {
  const auto set = driver(executor).cuGraphKernelNodeSetParams_v2;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const KernelNode built(*shape, device_function, kernel, context, parameters, parameter_bytes);
  return set(node, &built.params);
}

CUresult serve_rcuda_graph_exec_set_kernel_node(Executor& executor, CUgraphExec exec,
                                                CUgraphNode node, CUfunction device_function,
                                                CUkernel kernel, CUcontext context,
                                                const CUDA_KERNEL_NODE_PARAMS* shape,
                                                const void* parameters, size_t parameter_bytes) {
  const auto set = driver(executor).cuGraphExecKernelNodeSetParams_v2;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const KernelNode built(*shape, device_function, kernel, context, parameters, parameter_bytes);
  return set(exec, node, &built.params);
}

CUresult serve_rcuda_stream_capture_info(Executor& executor, CUstream stream,
                                         CUstreamCaptureStatus* status, cuuint64_t* id,
                                         CUgraph* graph, CUgraphNode* dependencies,
                                         CUgraphEdgeData* edges, size_t* count) {
  const auto ask = driver(executor).cuStreamGetCaptureInfo_v3;
  if (ask == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const size_t room = *count;
  const CUgraphNode* found = nullptr;
  const CUgraphEdgeData* found_edges = nullptr;
  *count = 0;
  // Without a place for edge data the driver refuses when there is some, as it does locally.
  const CUresult result =
      ask(stream, status, id, graph, &found, edges != nullptr ? &found_edges : nullptr, count);
  if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
  const size_t copied = std::min(room, *count);
  if (dependencies != nullptr && found != nullptr) std::copy_n(found, copied, dependencies);
  if (edges != nullptr && found_edges != nullptr) std::copy_n(found_edges, copied, edges);
  return result;
}

}  // namespace rcuda::server
