// Graphs, where more is needed than the driver's function of the same name: nodes that hold
// addresses of the client or things it keeps, what kernel nodes read back as, and executables.
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "api/server_handlers.h"
#include "api/stubs/shared.h"
#include "common/base/log.h"
#include "server/executor/custom.h"
#include "server/executor/executor.h"
#include "server/executor/graph_copies.h"
#include "server/executor/graph_keeper.h"
#include "server/executor/host_callbacks.h"
#include "server/executor/host_memory.h"

namespace rcuda::server {
namespace {

// Whether the driver knows the memory that one side of a copy touches: its first byte and its last.
// The driver would read or write any other address of this process with the CPU. `first`: where the
// side begins.
bool is_known(Executor& executor, CUmemorytype type, const void* host, CUdeviceptr device,
              size_t x_bytes, size_t y, size_t z, size_t pitch, size_t height,
              const CUDA_MEMCPY3D& copy, uint64_t* first) {
  *first = 0;
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
  const Wide begin = base + (Wide{z} * rows + y) * row + x_bytes;
  const Wide last = base + ((Wide{z} + copy.Depth - 1) * rows + y + copy.Height - 1) * row +
                    x_bytes + copy.WidthInBytes - 1;
  if (last > ~uint64_t{0}) return false;
  *first = static_cast<uint64_t>(begin);
  return executor.graph_keeper().is_known(*first, nullptr) &&
         executor.graph_keeper().is_known(static_cast<CUdeviceptr>(last), nullptr);
}

// The two sides of a copy, checked; what the client keeps for them, if anything.
struct CheckedCopy {
  CheckedCopy(Executor& executor, const CUDA_MEMCPY3D& copy) : executor_(executor) {
    is_valid =
        is_known(executor, copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes,
                 copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight, copy, &source_) &&
        is_known(executor, copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes,
                 copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight, copy, &destination_);
  }
  // Once the driver has taken the copy; null when there is nothing to keep.
  Kept claim() {
    auto source = executor_.host_memory().claim(source_);
    auto destination = executor_.host_memory().claim(destination_);
    if (!source && !destination) return nullptr;
    return std::make_shared<std::pair<Kept, Kept>>(std::move(source), std::move(destination));
  }

  bool is_valid = false;

 private:
  Executor& executor_;
  uint64_t source_ = 0, destination_ = 0;
};

// The kernel of a library whose function this is. The driver turned one into the other at the
// launch, so it has no name of its own. Names tell the few candidates where the driver tells the
// function's; asking for whose function is exact.
CUkernel kernel_behind(Executor& executor, CUfunction function) {
  const api::DriverTable& driver = executor.driver();
  const char* name = nullptr;
  if (!driver.cuFuncGetName || !driver.cuKernelGetName || !driver.cuKernelGetFunction)
    return nullptr;
  if (driver.cuFuncGetName(&name, function) != CUDA_SUCCESS) name = nullptr;
  CUkernel found = nullptr;
  executor.objects(wire::Kind::kKernel).for_each([&](wire::ObjectId, const Object& object) {
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

// What a node launches, as one of the client's objects: a library's kernel if it is one, for that
// is what cudart knows, else a module's function. A driver tells of a kernel by `kern`, with or
// without its function in the node's context in `func`; older ones by `func` alone.
void find_launched(Executor& executor, const CUDA_KERNEL_NODE_PARAMS& node, CUfunction* function,
                   CUkernel* kernel) {
  const auto is_clients = [&](wire::Kind kind, void* handle) {
    return handle != nullptr && executor.objects(kind).id_of(handle) != 0;
  };
  if (is_clients(wire::Kind::kKernel, node.kern)) {
    *kernel = node.kern;
  } else if (is_clients(wire::Kind::kFunction, node.func)) {
    *function = node.func;
  } else if (is_clients(wire::Kind::kKernel, node.func)) {
    *kernel = reinterpret_cast<CUkernel>(node.func);
  } else if (node.func != nullptr) {
    *kernel = kernel_behind(executor, node.func);
  }
}

// The packed buffer of an `extra` array of the driver's; empty when it holds none.
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

CUresult serve_cuGraphDestroy(Executor& executor, CUgraph hGraph) {
  const GraphKeeper::Names names = executor.graph_keeper().names_in(hGraph);
  const CUresult result = executor.driver().cuGraphDestroy(hGraph);
  if (api::is_gone(result)) executor.graph_keeper().forget(names);
  return result;
}

CUresult serve_cuGraphDestroyNode(Executor& executor, CUgraphNode hNode) {
  const GraphKeeper::Names names = executor.graph_keeper().names_in(hNode);
  const CUresult result = executor.driver().cuGraphDestroyNode(hNode);
  if (api::is_gone(result)) executor.graph_keeper().forget(names);
  return result;
}

CUresult serve_rcuda_graph_retain(Executor& executor, CUgraph graph, unsigned long long number) {
  return executor.graph_keeper().retain_number(graph, number);
}

CUresult serve_rcuda_graph_release(Executor& executor, CUgraph graph, unsigned long long number) {
  return executor.graph_keeper().release_number(graph, number);
}

// ---- executables -------------------------------------------------------------------------------

CUresult serve_cuGraphInstantiateWithFlags(Executor& executor, CUgraphExec* phGraphExec,
                                           CUgraph hGraph, unsigned long long flags) {
  const auto instantiate = executor.driver().cuGraphInstantiateWithFlags;
  if (instantiate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const GraphCopies::Dressing dressing(executor.graph_copies(), hGraph);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = instantiate(phGraphExec, hGraph, flags);
  if (result == CUDA_SUCCESS) executor.graph_copies().instantiated(*phGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphInstantiateWithParams(Executor& executor, CUgraphExec* phGraphExec,
                                            CUgraph hGraph,
                                            CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  const auto instantiate = executor.driver().cuGraphInstantiateWithParams;
  if (instantiate == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const GraphCopies::Dressing dressing(executor.graph_copies(), hGraph);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = instantiate(phGraphExec, hGraph, instantiateParams);
  instantiateParams->hErrNode_out = dressing.named(instantiateParams->hErrNode_out);
  if (result == CUDA_SUCCESS) executor.graph_copies().instantiated(*phGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphExecUpdate_v2(Executor& executor, CUgraphExec hGraphExec, CUgraph hGraph,
                                    CUgraphExecUpdateResultInfo* resultInfo) {
  const auto update = executor.driver().cuGraphExecUpdate_v2;
  if (update == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const GraphCopies::Dressing dressing(executor.graph_copies(), hGraph, hGraphExec);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = update(hGraphExec, hGraph, resultInfo);
  if (resultInfo != nullptr) {
    resultInfo->errorNode = dressing.named(resultInfo->errorNode);
    resultInfo->errorFromNode = dressing.named(resultInfo->errorFromNode);
  }
  if (result == CUDA_SUCCESS) executor.graph_copies().updated(hGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphExecChildGraphNodeSetParams(Executor& executor, CUgraphExec hGraphExec,
                                                  CUgraphNode hNode, CUgraph childGraph) {
  const auto set = executor.driver().cuGraphExecChildGraphNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const GraphCopies::Dressing dressing(executor.graph_copies(), childGraph, hGraphExec, hNode);
  if (dressing.result() != CUDA_SUCCESS) return dressing.result();
  const CUresult result = set(hGraphExec, hNode, childGraph);
  if (result == CUDA_SUCCESS) executor.graph_copies().updated(hGraphExec, dressing);
  return result;
}

CUresult serve_cuGraphLaunch(Executor& executor, CUgraphExec hGraphExec, CUstream hStream) {
  return executor.graph_copies().launch(hGraphExec, hStream);
}

CUresult serve_cuGraphExecDestroy(Executor& executor, CUgraphExec hGraphExec) {
  executor.graph_copies().forget(hGraphExec);
  executor.graph_keeper().forget(hGraphExec);
  return executor.driver().cuGraphExecDestroy(hGraphExec);
}

// ---- host nodes --------------------------------------------------------------------------------

CUresult serve_cuGraphAddHostNode(Executor& executor, CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  const CUDA_HOST_NODE_PARAMS* nodeParams) {
  const auto add = executor.driver().cuGraphAddHostNode;
  if (add == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Kept function = executor.host_callbacks().take(nodeParams->userData);
  const CUresult result = add(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
  if (result == CUDA_SUCCESS) (void)executor.graph_keeper().retain(hGraph, std::move(function));
  return result;
}

CUresult serve_cuGraphHostNodeSetParams(Executor& executor, CUgraphNode hNode,
                                        const CUDA_HOST_NODE_PARAMS* nodeParams) {
  const auto set = executor.driver().cuGraphHostNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Kept function = executor.host_callbacks().take(nodeParams->userData);
  const CUresult result = set(hNode, nodeParams);
  if (result == CUDA_SUCCESS) executor.graph_keeper().retain_for(hNode, std::move(function));
  return result;
}

CUresult serve_cuGraphExecHostNodeSetParams(Executor& executor, CUgraphExec hGraphExec,
                                            CUgraphNode hNode,
                                            const CUDA_HOST_NODE_PARAMS* nodeParams) {
  const auto set = executor.driver().cuGraphExecHostNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  Kept function = executor.host_callbacks().take(nodeParams->userData);
  const CUresult result = set(hGraphExec, hNode, nodeParams);
  if (result == CUDA_SUCCESS) {
    executor.graph_keeper().retain_for(hGraphExec, hNode, std::move(function));
  }
  return result;
}

CUresult serve_rcuda_graph_host_node(Executor& executor, CUgraphNode node,
                                     unsigned long long* number) {
  const auto get = executor.driver().cuGraphHostNodeGetParams;
  if (get == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_HOST_NODE_PARAMS params{};
  const CUresult result = get(node, &params);
  *number = result == CUDA_SUCCESS ? HostCallbacks::number_of(params.fn, params.userData) : 0;
  return result;
}

// ---- copy nodes --------------------------------------------------------------------------------

CUresult serve_cuGraphAddMemcpyNode(Executor& executor, CUgraphNode* phGraphNode, CUgraph hGraph,
                                    const CUgraphNode* dependencies, size_t numDependencies,
                                    const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  const auto add = executor.driver().cuGraphAddMemcpyNode;
  if (add == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CheckedCopy copy(executor, *copyParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = add(phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx);
  if (result != CUDA_SUCCESS) return result;
  if (Kept kept = copy.claim()) (void)executor.graph_keeper().retain(hGraph, std::move(kept));
  return result;
}

CUresult serve_cuGraphMemcpyNodeSetParams(Executor& executor, CUgraphNode hNode,
                                          const CUDA_MEMCPY3D* nodeParams) {
  const auto set = executor.driver().cuGraphMemcpyNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CheckedCopy copy(executor, *nodeParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = set(hNode, nodeParams);
  if (result != CUDA_SUCCESS) return result;
  if (Kept kept = copy.claim()) executor.graph_keeper().retain_for(hNode, std::move(kept));
  return result;
}

CUresult serve_cuGraphExecMemcpyNodeSetParams(Executor& executor, CUgraphExec hGraphExec,
                                              CUgraphNode hNode, const CUDA_MEMCPY3D* copyParams,
                                              CUcontext ctx) {
  const auto set = executor.driver().cuGraphExecMemcpyNodeSetParams;
  if (set == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CheckedCopy copy(executor, *copyParams);
  if (!copy.is_valid) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = set(hGraphExec, hNode, copyParams, ctx);
  if (result != CUDA_SUCCESS) return result;
  executor.graph_copies().changed(hGraphExec, hNode, *copyParams);
  if (Kept kept = copy.claim()) {
    executor.graph_keeper().retain_for(hGraphExec, hNode, std::move(kept));
  }
  return result;
}

// ---- kernel nodes ------------------------------------------------------------------------------

CUresult serve_rcuda_graph_kernel_node(Executor& executor, CUgraphNode node,
                                       CUDA_KERNEL_NODE_PARAMS* shape, CUfunction* device_function,
                                       unsigned* kernel_id, CUcontext* context, void* parameters,
                                       size_t* parameter_bytes, unsigned* are_packed) {
  const api::DriverTable& driver = executor.driver();
  const size_t room = parameters != nullptr ? *parameter_bytes : 0;
  *parameter_bytes = 0;
  *device_function = nullptr;
  *kernel_id = 0;
  if (driver.cuGraphKernelNodeGetParams_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_KERNEL_NODE_PARAMS found{};
  if (CUresult result = driver.cuGraphKernelNodeGetParams_v2(node, &found);
      result != CUDA_SUCCESS) {
    return result;
  }
  *shape = found;
  *context = found.ctx;
  CUkernel kernel = nullptr;
  find_launched(executor, found, device_function, &kernel);
  if (*device_function == nullptr && kernel == nullptr) {
    RCUDA_DEBUG("a graph's kernel node launches nothing that the client has");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (kernel != nullptr) *kernel_id = executor.objects(wire::Kind::kKernel).id_of(kernel);
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
