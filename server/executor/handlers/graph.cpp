// Handlers of graphs that do more than call the driver's function of the same name. They concern
// nodes with addresses or objects of the client, queries of kernel nodes, and executables.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "api/server_handlers.h"
#include "api/shared.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/graphs/copy_range.h"
#include "server/executor/core/custom.h"
#include "server/executor/core/parameters.h"
#include "server/executor/graphs/graph_copies.h"
#include "server/executor/graphs/graph_keeper.h"
#include "server/executor/graphs/host_callbacks.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {
namespace {

// Whether the driver knows the first and the last byte that one side of a copy touches. Any other
// address belongs to this process itself. `first`: the address of the first byte.
bool is_known(GraphServices& services, const CopySide& side, const CUDA_MEMCPY3D& copy,
              uint64_t* first) {
  if (side.type == CU_MEMORYTYPE_ARRAY) return true;
  const std::optional<CopyRange> range = range_of(side, extent_of(copy));
  if (!range || range->bytes == 0) return range.has_value();
  *first = range->first;
  return services.graph_keeper.is_known(*first, nullptr) &&
         services.graph_keeper.is_known(*first + range->bytes - 1, nullptr);
}

// Checks the two sides of a copy, and claims the resources that the client keeps for them.
struct CheckedCopy {
  CheckedCopy(GraphServices& services, const CUDA_MEMCPY3D& copy)
      : host_memory_(services.host_memory) {
    is_valid = is_known(services, source_of(copy), copy, &source_) &&
               is_known(services, destination_of(copy), copy, &destination_);
  }
  // To be called when the driver has accepted the copy. Returns null if there is nothing to keep.
  Resource claim() {
    auto source = host_memory_.claim(source_);
    auto destination = host_memory_.claim(destination_);
    if (!source && !destination) return nullptr;
    return std::make_shared<std::pair<Resource, Resource>>(std::move(source),
                                                           std::move(destination));
  }

  bool is_valid = false;

 private:
  HostMemory& host_memory_;
  uint64_t source_ = 0, destination_ = 0;
};

// Finds the library's kernel to which a function belongs. The driver made the function itself, so
// the function has no id. Candidates are the kernels of the same name (all kernels, if the driver
// gives no name). The driver reports the function of each candidate; the candidate with this
// function is the kernel.
CUkernel kernel_behind(GraphServices& services, CUfunction function) {
  const api::DriverTable& driver = services.driver;
  const char* name = nullptr;
  if (driver.cuFuncGetName(&name, function) != CUDA_SUCCESS) name = nullptr;
  CUkernel found = nullptr;
  services.objects.of(wire::Kind::kKernel).for_each([&](wire::ObjectId, const Object& object) {
    const auto kernel = static_cast<CUkernel>(object.handle);
    const char* candidate = nullptr;
    CUfunction made = nullptr;
    if (!found && driver.cuKernelGetName(&candidate, kernel) == CUDA_SUCCESS &&
        candidate != nullptr && (name == nullptr || std::strcmp(candidate, name) == 0) &&
        driver.cuKernelGetFunction(&made, kernel) == CUDA_SUCCESS && made == function) {
      found = kernel;
    }
  });
  return found;
}

// Finds the client's object that a node launches: a library's kernel if there is one, otherwise a
// module's function. A driver reports a kernel in `kern`; `func` may also have the kernel's
// function for the node's context. Older drivers report the kernel only in `func`.
void find_launched(GraphServices& services, const CUDA_KERNEL_NODE_PARAMS& node,
                   CUfunction* function, CUkernel* kernel) {
  const auto is_clients = [&](wire::Kind kind, void* handle) {
    return handle != nullptr && services.objects.of(kind).id_of(handle) != 0;
  };
  if (is_clients(wire::Kind::kKernel, node.kern)) {
    *kernel = node.kern;
  } else if (is_clients(wire::Kind::kFunction, node.func)) {
    *function = node.func;
  } else if (is_clients(wire::Kind::kKernel, node.func)) {
    *kernel = reinterpret_cast<CUkernel>(node.func);
  } else if (node.func != nullptr) {
    *kernel = kernel_behind(services, node.func);
  }
}

// The packed parameters in an `extra` array of the driver; empty if it has none.
std::span<const std::byte> packed_parameters(void* const* extra) {
  const std::byte* buffer = nullptr;
  size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<const std::byte*>(extra[1]);
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != nullptr) {
      bytes = *static_cast<const size_t*>(extra[1]);
    }
  }
  return {buffer, buffer != nullptr ? bytes : 0};
}

}  // namespace

// ---- lifetime ----------------------------------------------------------------------------------

CUresult serve_cuGraphDestroy(GraphServices& services, CUgraph hGraph) {
  const GraphKeeper::Names names = services.graph_keeper.names_in(hGraph);
  const CUresult result = services.driver.cuGraphDestroy(hGraph);
  if (api::is_gone(result)) services.graph_keeper.forget(names);
  return result;
}

CUresult serve_cuGraphDestroyNode(GraphServices& services, CUgraphNode hNode) {
  const GraphKeeper::Names names = services.graph_keeper.names_in(hNode);
  const CUresult result = services.driver.cuGraphDestroyNode(hNode);
  if (api::is_gone(result)) services.graph_keeper.forget(names);
  return result;
}

CUresult serve_rcuda_graph_add_conditional(GraphServices& services, CUgraphNode* node,
                                           CUgraph graph, const CUgraphNode* dependencies,
                                           size_t count, CUgraphConditionalHandle handle,
                                           CUgraphConditionalNodeType type, CUcontext context,
                                           CUgraph* bodies, size_t* body_count) {
  const api::DriverTable& driver = services.driver;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = static_cast<unsigned>(*body_count);
  params.conditional.ctx = context;
  const CUresult result =
      driver.cuGraphAddNode_v2(node, graph, dependencies, nullptr, count, &params);
  if (result != CUDA_SUCCESS || *body_count == 0) return result;
  std::copy_n(params.conditional.phGraph_out, *body_count, bodies);
  services.graph_keeper.note_bodies(*node, {bodies, bodies + *body_count});
  return CUDA_SUCCESS;
}

// ---- executables -------------------------------------------------------------------------------

CUresult serve_cuGraphInstantiateWithFlags(GraphServices& services, CUgraphExec* phGraphExec,
                                           CUgraph hGraph, unsigned long long flags) {
  const GraphCopies::Dressing dressing(services.graph_copies, hGraph);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = services.driver.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
  if (result == CUDA_SUCCESS) services.graph_copies.instantiated(*phGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphInstantiateWithParams(GraphServices& services, CUgraphExec* phGraphExec,
                                            CUgraph hGraph,
                                            CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  const GraphCopies::Dressing dressing(services.graph_copies, hGraph);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result =
      services.driver.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
  instantiateParams->hErrNode_out = dressing.named(instantiateParams->hErrNode_out);
  if (result == CUDA_SUCCESS) services.graph_copies.instantiated(*phGraphExec, dressing);
  return result;
}

CUresult serve_rcuda_graph_exec_handle(GraphServices&, CUgraphExec exec,
                                       unsigned long long* handle) {
  *handle = reinterpret_cast<uintptr_t>(exec);
  return CUDA_SUCCESS;
}

CUresult serve_cuGraphExecUpdate_v2(GraphServices& services, CUgraphExec hGraphExec, CUgraph hGraph,
                                    CUgraphExecUpdateResultInfo* resultInfo) {
  const GraphCopies::Dressing dressing(services.graph_copies, hGraph, hGraphExec);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = services.driver.cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo);
  if (resultInfo != nullptr) {
    resultInfo->errorNode = dressing.named(resultInfo->errorNode);
    resultInfo->errorFromNode = dressing.named(resultInfo->errorFromNode);
  }
  if (result == CUDA_SUCCESS) services.graph_copies.updated(hGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphExecChildGraphNodeSetParams(GraphServices& services, CUgraphExec hGraphExec,
                                                  CUgraphNode hNode, CUgraph childGraph) {
  const GraphCopies::Dressing dressing(services.graph_copies, childGraph, hGraphExec, hNode);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result =
      services.driver.cuGraphExecChildGraphNodeSetParams(hGraphExec, hNode, childGraph);
  if (result == CUDA_SUCCESS) services.graph_copies.updated(hGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphExecDestroy(GraphServices& services, CUgraphExec hGraphExec) {
  services.graph_copies.forget(hGraphExec);
  services.graph_keeper.forget(hGraphExec);
  return services.driver.cuGraphExecDestroy(hGraphExec);
}

// ---- host nodes --------------------------------------------------------------------------------

CUresult serve_cuGraphAddHostNode(GraphServices& services, CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  const CUDA_HOST_NODE_PARAMS* nodeParams) {
  Resource function = services.host_callbacks.take(nodeParams->userData);
  const CUresult result = services.driver.cuGraphAddHostNode(phGraphNode, hGraph, dependencies,
                                                             numDependencies, nodeParams);
  if (result == CUDA_SUCCESS) (void)services.graph_keeper.retain(hGraph, std::move(function));
  return result;
}

CUresult serve_cuGraphHostNodeSetParams(GraphServices& services, CUgraphNode hNode,
                                        const CUDA_HOST_NODE_PARAMS* nodeParams) {
  Resource function = services.host_callbacks.take(nodeParams->userData);
  const CUresult result = services.driver.cuGraphHostNodeSetParams(hNode, nodeParams);
  if (result == CUDA_SUCCESS) services.graph_keeper.retain_for(hNode, std::move(function));
  return result;
}

CUresult serve_cuGraphExecHostNodeSetParams(GraphServices& services, CUgraphExec hGraphExec,
                                            CUgraphNode hNode,
                                            const CUDA_HOST_NODE_PARAMS* nodeParams) {
  Resource function = services.host_callbacks.take(nodeParams->userData);
  const CUresult result =
      services.driver.cuGraphExecHostNodeSetParams(hGraphExec, hNode, nodeParams);
  if (result == CUDA_SUCCESS) {
    services.graph_keeper.retain_for(hGraphExec, hNode, std::move(function));
  }
  return result;
}

CUresult serve_rcuda_graph_host_node(GraphServices& services, CUgraphNode node,
                                     unsigned long long* number) {
  CUDA_HOST_NODE_PARAMS params{};
  const CUresult result = services.driver.cuGraphHostNodeGetParams(node, &params);
  *number = result == CUDA_SUCCESS ? HostCallbacks::number_of(params.fn, params.userData) : 0;
  return result;
}

// ---- copy nodes --------------------------------------------------------------------------------

CUresult serve_cuGraphAddMemcpyNode(GraphServices& services, CUgraphNode* phGraphNode,
                                    CUgraph hGraph, const CUgraphNode* dependencies,
                                    size_t numDependencies, const CUDA_MEMCPY3D* copyParams,
                                    CUcontext ctx) {
  CheckedCopy copy(services, *copyParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = services.driver.cuGraphAddMemcpyNode(phGraphNode, hGraph, dependencies,
                                                               numDependencies, copyParams, ctx);
  if (result != CUDA_SUCCESS) return result;
  if (Resource resource = copy.claim())
    (void)services.graph_keeper.retain(hGraph, std::move(resource));
  return result;
}

CUresult serve_cuGraphMemcpyNodeSetParams(GraphServices& services, CUgraphNode hNode,
                                          const CUDA_MEMCPY3D* nodeParams) {
  CheckedCopy copy(services, *nodeParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = services.driver.cuGraphMemcpyNodeSetParams(hNode, nodeParams);
  if (result != CUDA_SUCCESS) return result;
  if (Resource resource = copy.claim())
    services.graph_keeper.retain_for(hNode, std::move(resource));
  return result;
}

CUresult serve_cuGraphExecMemcpyNodeSetParams(GraphServices& services, CUgraphExec hGraphExec,
                                              CUgraphNode hNode, const CUDA_MEMCPY3D* copyParams,
                                              CUcontext ctx) {
  CheckedCopy copy(services, *copyParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result =
      services.driver.cuGraphExecMemcpyNodeSetParams(hGraphExec, hNode, copyParams, ctx);
  if (result != CUDA_SUCCESS) return result;
  services.graph_copies.changed(hGraphExec, hNode, *copyParams);
  if (Resource resource = copy.claim()) {
    services.graph_keeper.retain_for(hGraphExec, hNode, std::move(resource));
  }
  return result;
}

// ---- kernel nodes ------------------------------------------------------------------------------

CUresult serve_rcuda_graph_kernel_node(GraphServices& services, CUgraphNode node,
                                       CUDA_KERNEL_NODE_PARAMS* shape, CUfunction* device_function,
                                       unsigned* kernel_id, CUcontext* context, void* parameters,
                                       size_t* parameter_bytes, unsigned* are_packed) {
  const api::DriverTable& driver = services.driver;
  const size_t room = parameters != nullptr ? *parameter_bytes : 0;
  *parameter_bytes = 0;
  *device_function = nullptr;
  *kernel_id = 0;
  CUDA_KERNEL_NODE_PARAMS found{};
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuGraphKernelNodeGetParams_v2(node, &found));
  *shape = found;
  *context = found.ctx;
  CUkernel kernel = nullptr;
  find_launched(services, found, device_function, &kernel);
  if (*device_function == nullptr && kernel == nullptr) {
    RCUDA_DEBUG(
        "a graph's kernel node launches a kernel that the client does not know: the query fails");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (kernel != nullptr) *kernel_id = services.objects.of(wire::Kind::kKernel).id_of(kernel);
  // "The params will contain either kernelParams or extra, according to which of these was most
  // recently set on the node" (CUDA's documentation).
  *are_packed = found.kernelParams == nullptr && found.extra != nullptr;
  auto* bytes = static_cast<std::byte*>(parameters);
  if (*are_packed) {
    const std::span<const std::byte> packed = packed_parameters(found.extra);
    if (packed.size() > room) return CUDA_ERROR_INVALID_VALUE;
    if (!packed.empty()) std::memcpy(bytes, packed.data(), packed.size());
    *parameter_bytes = packed.size();
    return CUDA_SUCCESS;
  }
  if (found.kernelParams == nullptr) return CUDA_SUCCESS;
  const bool is_kernel = kernel != nullptr;
  const auto all =
      parameters_of(driver, is_kernel ? static_cast<void*>(kernel) : *device_function, is_kernel);
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t end = size_t{all[i].offset_bytes} + all[i].size_bytes;
    if (end > room) return CUDA_ERROR_INVALID_VALUE;
    if (end > *parameter_bytes) {
      std::memset(bytes + *parameter_bytes, 0, end - *parameter_bytes);
      *parameter_bytes = end;
    }
    std::memcpy(bytes + all[i].offset_bytes, found.kernelParams[i], all[i].size_bytes);
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server
