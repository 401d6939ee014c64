// Graph nodes whose parameters contain pointers of the application: kernels, host functions,
// copies.

#include <optional>
#include <vector>

#include <cuda.h>

#include "client/code/functions.h"
#include "client/code/parameters.h"
#include "client/copy/locate.h"
#include "client/copy/peer_node.h"
#include "client/copy/stand_in.h"
#include "client/hostmem/host_memory.h"
#include "client/hostmem/registered_pages.h"
#include "client/objects/arena.h"
#include "client/objects/graph.h"
#include "client/process/process.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// ---- kernels -----------------------------------------------------------------------------------

// A kernel node with packed parameters.
struct PackedKernel {
  CUfunction function = nullptr;
  CUkernel kernel = nullptr;
  std::vector<std::byte> parameters;
  bool were_packed = false;  // the application passed them in `extra`
};

CUresult pack_kernel(const CUDA_KERNEL_NODE_PARAMS& node, PackedKernel* packed) {
  RCUDA_ASSIGN_OR_RETURN(const Route route, find_current_route());
  // cudart passes a CUkernel in `func` or in `kern`.
  CUfunction callable_handle = node.func ? node.func : reinterpret_cast<CUfunction>(node.kern);
  if (node.func && node.kern) {
    // cuGraphKernelNodeGetParams returns both members for a node of a CUkernel. If the application
    // passes them back, the node must remain a node of the CUkernel.
    auto* kernel = find<Kernel>(node.kern);
    Function* made;
    if (kernel && function_in(*kernel, route, &made) == CUDA_SUCCESS &&
        reinterpret_cast<CUfunction>(made) == node.func) {
      callable_handle = reinterpret_cast<CUfunction>(node.kern);
    }
  }
  Callable callable;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_callable(callable_handle, route, &callable));
  if (callable.is_kernel) {
    packed->kernel = reinterpret_cast<CUkernel>(callable_handle);
  } else {
    packed->function = callable_handle;
  }
  size_t bytes;
  RCUDA_RETURN_IF_CUDA_ERROR(
      parameter_bytes(*callable.info, node.kernelParams, node.extra, &bytes));
  packed->parameters.resize(bytes);
  packed->were_packed = !node.kernelParams && node.extra;
  const CUresult result =
      pack_parameters(*callable.info, node.kernelParams, node.extra, packed->parameters);
  if (result == CUDA_SUCCESS) {
    mirror_reachable(route, LaunchParameters{packed->parameters, callable.info->parameters});
  }
  return result;
}

// ---- host functions ----------------------------------------------------------------------------

// Registers the callback under an id that the worker uses to request it, and calls send() with node
// parameters that have the id. The callback runs at every launch. It is removed when no graph of
// the worker has the node any more, or if send() fails.
template <typename Send>
CUresult with_callback(WorkerEvents::GraphCallback callback, const Object& owner,
                       const Send& send) {
  WorkerEvents& events = owner.session->events();
  const auto id = events.add_graph_callback(std::move(callback));
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  CUDA_HOST_NODE_PARAMS numbered{};
  numbered.userData = reinterpret_cast<void*>(static_cast<uintptr_t>(*id));
  const CUresult result = send(&numbered);
  if (result != CUDA_SUCCESS) events.remove_callback(*id);
  return result;
}

template <typename Send>
CUresult with_host_function(const CUDA_HOST_NODE_PARAMS& given, const Object& owner,
                            const Send& send) {
  if (!given.fn) return CUDA_ERROR_INVALID_VALUE;
  WorkerEvents::GraphCallback callback;
  callback.function = [given] { given.fn(given.userData); };
  callback.given = given;
  return with_callback(std::move(callback), owner, send);
}

// ---- copies ------------------------------------------------------------------------------------

// A copy for a node of the worker's graph. Stand-ins (client/copy/stand_in.h) replace host memory
// that is pageable, or that the worker has in several pieces (pieces_in_runs()).
class CopyNode {
 public:
  CopyNode(const CUDA_MEMCPY3D& given, const Object& owner) : owner_(owner), copy_(given) {
    result_ = side(copy_.dstMemoryType, &copy_.dstHost, copy_.dstDevice, copy_.dstPitch,
                   copy_.dstHeight, copy_.dstXInBytes, copy_.dstY, copy_.dstZ, false);
    if (result_ != CUDA_SUCCESS) return;
    auto* source = const_cast<void*>(copy_.srcHost);
    result_ = side(copy_.srcMemoryType, &source, copy_.srcDevice, copy_.srcPitch, copy_.srcHeight,
                   copy_.srcXInBytes, copy_.srcY, copy_.srcZ, true);
    copy_.srcHost = source;
  }
  // Removes the stand-ins, unless the worker has accepted the copy.
  ~CopyNode() {
    for (uint64_t callback : callbacks_) owner_.session->events().remove_callback(callback);
  }
  CopyNode(const CopyNode&) = delete;
  CopyNode& operator=(const CopyNode&) = delete;

  CUresult result() const { return result_; }
  const CUDA_MEMCPY3D* copy() const { return &copy_; }
  CUresult sent(CUresult result) {
    if (result == CUDA_SUCCESS) callbacks_.clear();
    return result;
  }

 private:
  CUresult side(CUmemorytype& type, void** host, CUdeviceptr& device, size_t& pitch, size_t& height,
                size_t x, size_t y, size_t z, bool is_source) {
    if (type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
    const uint64_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uintptr_t>(*host) : device;
    if (copy_.WidthInBytes == 0 || copy_.Height == 0 || copy_.Depth == 0) {
      return CUDA_SUCCESS;
    }
    HostRows rows;
    rows.width_bytes = copy_.WidthInBytes;
    rows.rows = copy_.Height;
    rows.slices = copy_.Depth;
    rows.pitch_bytes = pitch ? pitch : x + copy_.WidthInBytes;
    rows.slice_bytes = rows.pitch_bytes * (height ? height : y + copy_.Height);
    rows.first = base + z * rows.slice_bytes + y * rows.pitch_bytes + x;
    Location location;
    RCUDA_RETURN_IF_CUDA_ERROR(locate(rows.first, 1, Side::kAny, &location));
    const size_t span = (rows.slices - 1) * rows.slice_bytes + (rows.rows - 1) * rows.pitch_bytes +
                        rows.width_bytes;
    const bool is_whole =
        location.home != Home::kExposed || pieces_in_runs(rows.first, span).size() == 1;
    if (location.home != Home::kPageable && is_whole) return CUDA_SUCCESS;
    StandIn made;
    RCUDA_RETURN_IF_CUDA_ERROR(
        make_stand_in(*owner_.session, route_of_graph(owner_).context, rows, is_source, &made));
    callbacks_.push_back(made.callback);
    type = CU_MEMORYTYPE_HOST;
    *host = reinterpret_cast<void*>(base - rows.first + made.first);
    return CUDA_SUCCESS;
  }

  const Object& owner_;
  CUDA_MEMCPY3D copy_;
  CUresult result_ = CUDA_SUCCESS;
  std::vector<uint64_t> callbacks_;
};

// Like with_host_function(), for a copy between servers.
template <typename Send>
CUresult with_peer_copy(const CopyBetweenServers& copy, const CUDA_MEMCPY3D& given,
                        const Object& owner, const Send& send) {
  return with_callback(node_function_of(copy, given), owner, send);
}

// Gets the parameters of a node that copies between servers. Returns false for other nodes.
bool peer_copy_given(CUgraphNode handle, const Object& node, CUDA_MEMCPY3D* given) {
  unsigned long long number = 0;
  return forward_rcuda_graph_host_node(handle, &number) == CUDA_SUCCESS &&
         node.session->events().copy_given(number, given);
}

// Returns an error if a copy node may not get these parameters. A copy between servers is a host
// node in the worker, so it cannot become a copy within one server, nor the reverse. `between`: set
// if the new copy is between servers.
CUresult check_change(CUgraphNode handle, const Object& node, const CUDA_MEMCPY3D& given,
                      bool in_executable, std::optional<CopyBetweenServers>* between) {
  RCUDA_RETURN_IF_CUDA_ERROR(copy_between_servers_of(given, between));
  // Programs with one server have no copies between servers. Save them the round trip.
  if (Process::get().sessions().size() < 2) return CUDA_SUCCESS;
  CUDA_MEMCPY3D had;
  if (!peer_copy_given(handle, node, &had)) {
    return *between ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
  }
  if (!*between) return in_executable ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  if (!in_executable) return CUDA_SUCCESS;
  std::optional<CopyBetweenServers> before;
  RCUDA_RETURN_IF_CUDA_ERROR(copy_between_servers_of(had, &before));
  return before && may_become(*before, **between) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The reverse of CopyNode: replaces the address of a stand-in by the application's address.
void restore_side(CUmemorytype type, void** host, size_t pitch, size_t height, size_t x, size_t y,
                  size_t z, const CUDA_MEMCPY3D& copy) {
  if (type != CU_MEMORYTYPE_HOST) return;
  const auto base = reinterpret_cast<uintptr_t>(*host);
  const size_t row = pitch ? pitch : x + copy.WidthInBytes;
  const uint64_t first = base + (z * (height ? height : y + copy.Height) + y) * row + x;
  const uint64_t original = original_of(first);
  if (original) *host = reinterpret_cast<void*>(base - first + original);
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
  RCUDA_RETURN_IF_CUDA_ERROR(pack_kernel(*parameters, &packed));
  return forward_rcuda_graph_add_kernel_node(
      node, graph, dependencies, count, packed.function, packed.kernel, parameters->ctx, parameters,
      packed.parameters.data(), packed.parameters.size(), packed.were_packed);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* parameters) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  GraphNode::Answers& state = node->answers();
  state.parameters.resize(wire::kMaxParameterBytes);
  CUfunction function = nullptr;
  unsigned kernel_id = 0;
  CUcontext context = nullptr;
  size_t bytes = state.parameters.size();
  unsigned are_packed = 0;
  CUDA_KERNEL_NODE_PARAMS found{};
  CUresult result = forward_rcuda_graph_kernel_node(handle, &found, &function, &kernel_id, &context,
                                                    state.parameters.data(), &bytes, &are_packed);
  if (result != CUDA_SUCCESS) return result;
  if (bytes > state.parameters.size()) return CUDA_ERROR_UNKNOWN;
  const auto* const launched_in = find<Context>(context);
  const Route route = launched_in ? route_of(*launched_in) : route_of_graph(*node);
  CUkernel kernel = nullptr;
  if (kernel_id != 0) {
    // Look the kernel up by session and id: in another session, the id may name another kernel.
    Kernel* known = find_kernel(*node->session, kernel_id);
    if (!known) return CUDA_ERROR_INVALID_HANDLE;
    kernel = reinterpret_cast<CUkernel>(known);
    Function* made;
    result = function_in(*known, route, &made);
    if (result != CUDA_SUCCESS) return result;
    function = reinterpret_cast<CUfunction>(made);
  }
  Callable callable;
  result = resolve_callable(function, route, &callable);
  if (result != CUDA_SUCCESS) return result;
  state.parameters.resize(bytes);
  state.parameters.shrink_to_fit();
  *parameters = found;
  parameters->func = function;
  parameters->kern = kernel;
  parameters->ctx = context;
  parameters->kernelParams = nullptr;
  parameters->extra = nullptr;
  if (are_packed) {
    state.parameter_bytes = bytes;
    state.parameter_pointers = {CU_LAUNCH_PARAM_BUFFER_POINTER, state.parameters.data(),
                                CU_LAUNCH_PARAM_BUFFER_SIZE, &state.parameter_bytes,
                                CU_LAUNCH_PARAM_END};
    parameters->extra = state.parameter_pointers.data();
    return CUDA_SUCCESS;
  }
  state.parameter_pointers.clear();
  for (const wire::ParameterInfo& parameter : callable.info->parameters) {
    if (size_t{parameter.offset_bytes} + parameter.size_bytes > bytes) return CUDA_ERROR_UNKNOWN;
    state.parameter_pointers.push_back(state.parameters.data() + parameter.offset_bytes);
  }
  if (!state.parameter_pointers.empty()) parameters->kernelParams = state.parameter_pointers.data();
  return CUDA_SUCCESS;
}

// A driver also writes to `value`, although its type is const: it stores the handle by which
// kernels update the node.
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  const CUresult result = forward_cuGraphKernelNodeSetAttribute(node, attribute, value);
  if (result != CUDA_SUCCESS || attribute != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
    return result;
  }
  CUkernelNodeAttrValue now{};
  const CUresult got = cuGraphKernelNodeGetAttribute(node, attribute, &now);
  if (got == CUDA_SUCCESS) {
    const_cast<CUkernelNodeAttrValue*>(value)->deviceUpdatableKernelNode.devNode =
        now.deviceUpdatableKernelNode.devNode;
  }
  return got;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle,
                                       const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  PackedKernel packed;
  RCUDA_RETURN_IF_CUDA_ERROR(pack_kernel(*parameters, &packed));
  return forward_rcuda_graph_set_kernel_node(handle, packed.function, packed.kernel,
                                             parameters->ctx, parameters, packed.parameters.data(),
                                             packed.parameters.size(), packed.were_packed);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  PackedKernel packed;
  RCUDA_RETURN_IF_CUDA_ERROR(pack_kernel(*parameters, &packed));
  return forward_rcuda_graph_exec_set_kernel_node(
      executable, node, packed.function, packed.kernel, parameters->ctx, parameters,
      packed.parameters.data(), packed.parameters.size(), packed.were_packed);
}

// ---- host nodes --------------------------------------------------------------------------------

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS* parameters) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* owner = find<Graph>(graph);
  if (!owner || !node || !parameters) return CUDA_ERROR_INVALID_VALUE;
  return with_host_function(*parameters, *owner, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
    return forward_cuGraphAddHostNode(node, graph, dependencies, count, numbered);
  });
}

CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS* parameters) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  unsigned long long number = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_graph_host_node(handle, &number));
  return node->session->events().host_function_given(number, parameters) ? CUDA_SUCCESS
                                                                         : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* parameters) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return with_host_function(*parameters, *node, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
    return forward_cuGraphHostNodeSetParams(handle, numbered);
  });
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode handle,
                                      const CUDA_HOST_NODE_PARAMS* parameters) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return with_host_function(*parameters, *node, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
    return forward_cuGraphExecHostNodeSetParams(executable, handle, numbered);
  });
}

// ---- copy nodes --------------------------------------------------------------------------------

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMCPY3D* given, CUcontext context) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* owner = find<Graph>(graph);
  if (!owner || !given) return CUDA_ERROR_INVALID_VALUE;
  std::optional<CopyBetweenServers> between;
  RCUDA_RETURN_IF_CUDA_ERROR(copy_between_servers_of(*given, &between));
  if (between) {
    return with_peer_copy(*between, *given, *owner, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
      return forward_cuGraphAddHostNode(node, graph, dependencies, count, numbered);
    });
  }
  CopyNode copy(*given, *owner);
  if (copy.result() != CUDA_SUCCESS) return copy.result();
  return copy.sent(
      forward_cuGraphAddMemcpyNode(node, graph, dependencies, count, copy.copy(), context));
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* copy) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!copy) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = forward_cuGraphMemcpyNodeGetParams(handle, copy); result != CUDA_SUCCESS) {
    return peer_copy_given(handle, *node, copy) ? CUDA_SUCCESS : result;
  }
  restore_side(copy->dstMemoryType, &copy->dstHost, copy->dstPitch, copy->dstHeight,
               copy->dstXInBytes, copy->dstY, copy->dstZ, *copy);
  auto* source = const_cast<void*>(copy->srcHost);
  restore_side(copy->srcMemoryType, &source, copy->srcPitch, copy->srcHeight, copy->srcXInBytes,
               copy->srcY, copy->srcZ, *copy);
  copy->srcHost = source;
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D* given) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!given) return CUDA_ERROR_INVALID_VALUE;
  std::optional<CopyBetweenServers> between;
  RCUDA_RETURN_IF_CUDA_ERROR(check_change(handle, *node, *given, false, &between));
  if (between) {
    return with_peer_copy(*between, *given, *node, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
      return forward_cuGraphHostNodeSetParams(handle, numbered);
    });
  }
  CopyNode copy(*given, *node);
  if (copy.result() != CUDA_SUCCESS) return copy.result();
  return copy.sent(forward_cuGraphMemcpyNodeSetParams(handle, copy.copy()));
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode handle,
                                        const CUDA_MEMCPY3D* given, CUcontext context) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!given) return CUDA_ERROR_INVALID_VALUE;
  std::optional<CopyBetweenServers> between;
  RCUDA_RETURN_IF_CUDA_ERROR(check_change(handle, *node, *given, true, &between));
  if (between) {
    return with_peer_copy(*between, *given, *node, [&](const CUDA_HOST_NODE_PARAMS* numbered) {
      return forward_cuGraphExecHostNodeSetParams(executable, handle, numbered);
    });
  }
  CopyNode copy(*given, *node);
  if (copy.result() != CUDA_SUCCESS) return copy.result();
  return copy.sent(
      forward_cuGraphExecMemcpyNodeSetParams(executable, handle, copy.copy(), context));
}

}  // extern "C"
