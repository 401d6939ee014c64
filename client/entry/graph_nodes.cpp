// Graph nodes whose parameters hold pointers of the application: kernels, host functions, copies; and the
// entry points for nodes of any type.

#include <cuda.h>

#include <cstring>

#include "client/memory/locate.h"
#include "client/session/functions.h"
#include "client/session/graph_state.h"
#include "client/session/parameters.h"
#include "client/session/process.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult find_node(CUgraphNode handle, Object** node) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  *node = find_object(handle, wire::Kind::kGraphNode);
  return *node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- kernels -----------------------------------------------------------------------------------

// The parameters of a kernel node, packed.
struct PackedKernel {
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  std::vector<std::byte> parameters;
};

CUresult pack_kernel(const CUDA_KERNEL_NODE_PARAMS& node, PackedKernel* packed) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  // cudart passes a CUkernel in either member.
  CUfunction callable_handle = node.func ? node.func : reinterpret_cast<CUfunction>(node.kern);
  Callable callable;
  if (CUresult result = resolve_callable(callable_handle, target, &callable);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (callable.is_kernel) {
    packed->kernel = reinterpret_cast<CUkernel>(callable_handle);
  } else {
    packed->function = callable_handle;
  }
  size_t bytes;
  if (CUresult result = parameter_bytes(*callable.info, node.kernelParams, node.extra, &bytes);
      result != CUDA_SUCCESS) {
    return result;
  }
  packed->parameters.resize(bytes);
  return pack_parameters(*callable.info, node.kernelParams, node.extra, packed->parameters);
}

// What cuGraphKernelNodeGetParams gives back: the same, with pointers into the node's own copy.
void remember_kernel(Object* node, const CUDA_KERNEL_NODE_PARAMS& given, PackedKernel packed) {
  NodeState* state = node_state(node);
  state->kernel = given;
  state->kernel.extra = nullptr;
  state->parameters = std::move(packed.parameters);
  state->parameter_pointers.clear();
  Target target;
  Callable callable;
  CUfunction handle = given.func ? given.func : reinterpret_cast<CUfunction>(given.kern);
  if (target_current(&target) == CUDA_SUCCESS &&
      resolve_callable(handle, target, &callable) == CUDA_SUCCESS) {
    for (const wire::ParameterInfo& parameter : callable.info->parameters) {
      state->parameter_pointers.push_back(state->parameters.data() + parameter.offset_bytes);
    }
  }
  state->kernel.kernelParams =
      state->parameter_pointers.empty() ? nullptr : state->parameter_pointers.data();
}

// ---- host functions ----------------------------------------------------------------------------

// The node's function under a number the worker can name; it runs with every launch.
CUresult register_host(const CUDA_HOST_NODE_PARAMS& given, const Object& owner,
                       CUDA_HOST_NODE_PARAMS* numbered) {
  if (!given.fn) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_HOST_NODE_PARAMS copy = given;
  const uint64_t id =
      owner.session->events().add_callback([copy](CUresult) { copy.fn(copy.userData); }, false);
  *numbered = given;
  numbered->userData = reinterpret_cast<void*>(static_cast<uintptr_t>(id));
  return CUDA_SUCCESS;
}

// ---- copies ------------------------------------------------------------------------------------

// Both sides must have an address in the worker: the graph copies from and to the places themselves,
// at every launch.
CUresult check_copy(const CUDA_MEMCPY3D& copy) {
  const auto check = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    if (type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
    const uint64_t address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(host) : device;
    Location location;
    if (CUresult result = locate(address, 1, Side::kAny, &location); result != CUDA_SUCCESS) {
      return result;
    }
    return location.home == Home::kPageable ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  };
  if (CUresult result = check(copy.dstMemoryType, copy.dstHost, copy.dstDevice);
      result != CUDA_SUCCESS) {
    return result;
  }
  return check(copy.srcMemoryType, copy.srcHost, copy.srcDevice);
}

CUDA_KERNEL_NODE_PARAMS from_v3(const CUDA_KERNEL_NODE_PARAMS_v3& given) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = given.func;
  kernel.gridDimX = given.gridDimX;
  kernel.gridDimY = given.gridDimY;
  kernel.gridDimZ = given.gridDimZ;
  kernel.blockDimX = given.blockDimX;
  kernel.blockDimY = given.blockDimY;
  kernel.blockDimZ = given.blockDimZ;
  kernel.sharedMemBytes = given.sharedMemBytes;
  kernel.kernelParams = given.kernelParams;
  kernel.extra = given.extra;
  kernel.kern = given.kern;
  kernel.ctx = given.ctx;
  return kernel;
}

CUDA_MEMSET_NODE_PARAMS from_v2(const CUDA_MEMSET_NODE_PARAMS_v2& given) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = given.dst;
  fill.pitch = given.pitch;
  fill.value = given.value;
  fill.elementSize = given.elementSize;
  fill.width = given.width;
  fill.height = given.height;
  return fill;
}

CUDA_HOST_NODE_PARAMS from_v2(const CUDA_HOST_NODE_PARAMS_v2& given) {
  CUDA_HOST_NODE_PARAMS host{};
  host.fn = given.fn;
  host.userData = given.userData;
  return host;
}

CUcontext context_or_current(CUcontext context) {
  return context ? context : reinterpret_cast<CUcontext>(current_context());
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

// ---- kernel nodes ------------------------------------------------------------------------------

CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (!node || !parameters) return CUDA_ERROR_INVALID_VALUE;
  PackedKernel packed;
  if (CUresult result = pack_kernel(*parameters, &packed); result != CUDA_SUCCESS) return result;
  const CUresult result = forward_rcuda_graph_add_kernel_node(
      node, graph, dependencies, count, packed.function, packed.kernel, parameters->ctx, parameters,
      packed.parameters.data(), packed.parameters.size());
  if (result == CUDA_SUCCESS) {
    remember_kernel(find_object(*node, wire::Kind::kGraphNode), *parameters, std::move(packed));
  }
  return result;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* parameters) {
  Object* node;
  if (CUresult result = find_node(handle, &node); result != CUDA_SUCCESS) return result;
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  // A node that a capture made has its parameters at the worker only.
  if (!node->extra) return CUDA_ERROR_NOT_SUPPORTED;
  *parameters = node_state(node)->kernel;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                       const CUDA_KERNEL_NODE_PARAMS* parameters) {
  Object* node;
  if (CUresult result = find_node(handle, &node); result != CUDA_SUCCESS) return result;
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  PackedKernel packed;
  if (CUresult result = pack_kernel(*parameters, &packed); result != CUDA_SUCCESS) return result;
  const CUresult result = forward_rcuda_graph_set_kernel_node(
      handle, packed.function, packed.kernel, parameters->ctx, parameters, packed.parameters.data(),
      packed.parameters.size());
  if (result == CUDA_SUCCESS) remember_kernel(node, *parameters, std::move(packed));
  return result;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  PackedKernel packed;
  if (CUresult result = pack_kernel(*parameters, &packed); result != CUDA_SUCCESS) return result;
  return forward_rcuda_graph_exec_set_kernel_node(
      executable, node, packed.function, packed.kernel, parameters->ctx, parameters,
      packed.parameters.data(), packed.parameters.size());
}

// ---- host nodes --------------------------------------------------------------------------------

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS* parameters) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  const Object* owner = find_object(graph, wire::Kind::kGraph);
  if (!owner || !node || !parameters) return CUDA_ERROR_INVALID_VALUE;
  CUDA_HOST_NODE_PARAMS numbered;
  if (CUresult result = register_host(*parameters, *owner, &numbered); result != CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = forward_cuGraphAddHostNode(node, graph, dependencies, count, &numbered);
  if (result == CUDA_SUCCESS) {
    node_state(find_object(*node, wire::Kind::kGraphNode))->host = *parameters;
  }
  return result;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* parameters) {
  Object* node;
  if (CUresult result = find_node(handle, &node); result != CUDA_SUCCESS) return result;
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  if (!node->extra) return CUDA_ERROR_NOT_SUPPORTED;
  *parameters = node_state(node)->host;
  return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* parameters) {
  Object* node;
  if (CUresult result = find_node(handle, &node); result != CUDA_SUCCESS) return result;
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  CUDA_HOST_NODE_PARAMS numbered;
  if (CUresult result = register_host(*parameters, *node, &numbered); result != CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = forward_cuGraphHostNodeSetParams(handle, &numbered);
  if (result == CUDA_SUCCESS) node_state(node)->host = *parameters;
  return result;
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode handle,
                                      const CUDA_HOST_NODE_PARAMS* parameters) {
  Object* node;
  if (CUresult result = find_node(handle, &node); result != CUDA_SUCCESS) return result;
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  CUDA_HOST_NODE_PARAMS numbered;
  if (CUresult result = register_host(*parameters, *node, &numbered); result != CUDA_SUCCESS) {
    return result;
  }
  return forward_cuGraphExecHostNodeSetParams(executable, handle, &numbered);
}

// ---- copy nodes --------------------------------------------------------------------------------

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_copy(*copy); result != CUDA_SUCCESS) return result;
  return forward_cuGraphAddMemcpyNode(node, graph, dependencies, count, copy, context);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_copy(*copy); result != CUDA_SUCCESS) return result;
  return forward_cuGraphMemcpyNodeSetParams(node, copy);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = check_copy(*copy); result != CUDA_SUCCESS) return result;
  return forward_cuGraphExecMemcpyNodeSetParams(executable, node, copy, context);
}

// ---- nodes of any type -------------------------------------------------------------------------

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* parameters) {
  if (!node || !parameters) return CUDA_ERROR_INVALID_VALUE;
  // Edges with data are programmatic dependencies, which only a capture can make here.
  for (size_t i = 0; edges && i < count; ++i) {
    if (edges[i].type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT) return CUDA_ERROR_NOT_SUPPORTED;
  }
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS kernel = from_v3(parameters->kernel);
      return cuGraphAddKernelNode_v2(node, graph, dependencies, count, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, dependencies, count, &parameters->memcpy.copyParams,
                                  context_or_current(parameters->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS fill = from_v2(parameters->memset);
      return cuGraphAddMemsetNode(node, graph, dependencies, count, &fill,
                                  context_or_current(parameters->memset.ctx));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host = from_v2(parameters->host);
      return cuGraphAddHostNode(node, graph, dependencies, count, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(node, graph, dependencies, count, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(node, graph, dependencies, count);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, dependencies, count,
                                       parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, dependencies, count, parameters->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, dependencies, count, parameters->free.dptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS kernel = from_v3(parameters->kernel);
      return cuGraphKernelNodeSetParams_v2(node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphMemcpyNodeSetParams(node, &parameters->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS fill = from_v2(parameters->memset);
      return cuGraphMemsetNodeSetParams(node, &fill);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host = from_v2(parameters->host);
      return cuGraphHostNodeSetParams(node, &host);
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphEventRecordNodeSetEvent(node, parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphEventWaitNodeSetEvent(node, parameters->eventWait.event);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                  CUgraphNodeParams* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS kernel = from_v3(parameters->kernel);
      return cuGraphExecKernelNodeSetParams_v2(executable, node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphExecMemcpyNodeSetParams(executable, node, &parameters->memcpy.copyParams,
                                            context_or_current(parameters->memcpy.copyCtx));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS fill = from_v2(parameters->memset);
      return cuGraphExecMemsetNodeSetParams(executable, node, &fill,
                                            context_or_current(parameters->memset.ctx));
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS host = from_v2(parameters->host);
      return cuGraphExecHostNodeSetParams(executable, node, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphExecChildGraphNodeSetParams(executable, node, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphExecEventRecordNodeSetEvent(executable, node, parameters->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphExecEventWaitNodeSetEvent(executable, node, parameters->eventWait.event);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // extern "C"
