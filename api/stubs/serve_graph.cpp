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

}  // namespace

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
