// Replacements for driver functions that use pointers to arrays of unknown size. The parameters of
// a kernel node arrive as one block of bytes. The results of cuStreamGetCaptureInfo are copied out
// of the driver's arrays.
#include <algorithm>
#include <vector>

#include "api/driver_table.h"
#include "api/server_handlers.h"
#include "server/executor/core/parameters.h"

namespace rcuda::server {
namespace {

// Calls `call` with the parameters of a kernel node in the form that the application used: `extra`
// (packed) or `kernelParams`. A query of the node returns them in this form.
template <typename Call>
CUresult with_kernel_node(const api::DriverTable& table, CUDA_KERNEL_NODE_PARAMS params,
                          CUfunction function, CUkernel kernel, CUcontext context,
                          const void* parameters, size_t parameter_bytes, bool are_packed,
                          const Call& call) {
  auto* bytes = static_cast<char*>(const_cast<void*>(parameters));
  std::vector<void*> pointers;
  for (const auto& [offset, size] :
       function ? parameters_of(table, function, false) : parameters_of(table, kernel, true)) {
    // The driver ignores CU_LAUNCH_PARAM_BUFFER_SIZE and reads the bytes of all parameters, so the
    // block must contain all of them.
    if (size > parameter_bytes || offset > parameter_bytes - size) return CUDA_ERROR_INVALID_VALUE;
    pointers.push_back(bytes + offset);
  }
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &parameter_bytes, CU_LAUNCH_PARAM_END};
  params.func = function;
  params.kern = kernel;
  params.ctx = context;
  params.kernelParams = are_packed || pointers.empty() ? nullptr : pointers.data();
  params.extra = are_packed ? extra : nullptr;
  return call(&params);
}

}  // namespace

CUresult serve_rcuda_graph_add_kernel_node(const api::DriverTable& table, CUgraphNode* node,
                                           CUgraph graph, const CUgraphNode* dependencies,
                                           size_t dependency_count, CUfunction device_function,
                                           CUkernel kernel, CUcontext context,
                                           const CUDA_KERNEL_NODE_PARAMS* shape,
                                           const void* parameters, size_t parameter_bytes,
                                           unsigned are_packed) {
  return with_kernel_node(
      table, *shape, device_function, kernel, context, parameters, parameter_bytes, are_packed != 0,
      [&](const CUDA_KERNEL_NODE_PARAMS* params) {
        return table.cuGraphAddKernelNode_v2(node, graph, dependencies, dependency_count, params);
      });
}

CUresult serve_rcuda_graph_set_kernel_node(const api::DriverTable& table, CUgraphNode node,
                                           CUfunction device_function, CUkernel kernel,
                                           CUcontext context, const CUDA_KERNEL_NODE_PARAMS* shape,
                                           const void* parameters, size_t parameter_bytes,
                                           unsigned are_packed) {
  return with_kernel_node(table, *shape, device_function, kernel, context, parameters,
                          parameter_bytes, are_packed != 0,
                          [&](const CUDA_KERNEL_NODE_PARAMS* params) {
                            return table.cuGraphKernelNodeSetParams_v2(node, params);
                          });
}

CUresult serve_rcuda_graph_exec_set_kernel_node(const api::DriverTable& table, CUgraphExec exec,
                                                CUgraphNode node, CUfunction device_function,
                                                CUkernel kernel, CUcontext context,
                                                const CUDA_KERNEL_NODE_PARAMS* shape,
                                                const void* parameters, size_t parameter_bytes,
                                                unsigned are_packed) {
  return with_kernel_node(table, *shape, device_function, kernel, context, parameters,
                          parameter_bytes, are_packed != 0,
                          [&](const CUDA_KERNEL_NODE_PARAMS* params) {
                            return table.cuGraphExecKernelNodeSetParams_v2(exec, node, params);
                          });
}

CUresult serve_rcuda_stream_capture_info(const api::DriverTable& table, CUstream stream,
                                         CUstreamCaptureStatus* status, cuuint64_t* id,
                                         CUgraph* graph, CUgraphNode* dependencies,
                                         CUgraphEdgeData* edges, size_t* count) {
  const size_t room = *count;
  const CUgraphNode* found = nullptr;
  const CUgraphEdgeData* found_edges = nullptr;
  *count = 0;
  // Outputs that the application did not request are null for the driver too, so that the driver
  // returns the same errors as locally. It refuses a null output for edge data if an edge has data,
  // and a null output for dependencies if there is an output for edge data.
  const CUresult result = table.cuStreamGetCaptureInfo_v3(
      stream, status, id, graph, dependencies != nullptr ? &found : nullptr,
      edges != nullptr ? &found_edges : nullptr, count);
  if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return result;
  const size_t copied = std::min(room, *count);
  if (dependencies != nullptr && found != nullptr) std::copy_n(found, copied, dependencies);
  if (edges != nullptr && found_edges != nullptr) std::copy_n(found_edges, copied, edges);
  return result;
}

}  // namespace rcuda::server
