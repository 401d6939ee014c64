// Handlers of graph queries whose results the driver returns as pointers or writes to a file.
#include <algorithm>
#include <string>

#include <sys/mman.h>

#include "api/server_handlers.h"
#include "common/base/unique_fd.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/core/dispatch.h"
#include "server/executor/core/services.h"

namespace rcuda::server {
namespace {

// Copies as many of the driver's items as fit, and sets *room to the number of all items.
template <typename T>
void give(const T* found, size_t count, T* items, size_t* room) {
  const size_t fits = items ? std::min(*room, count) : 0;
  std::copy_n(found, fits, items);
  *room = count;
}

}  // namespace

CUresult serve_rcuda_graph_dot(GraphServices& services, CUgraph graph, unsigned flags, Blob* text) {
  const UniqueFd file(memfd_create("rcuda-graph", MFD_CLOEXEC));
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  RCUDA_RETURN_IF_CUDA_ERROR(services.driver.cuGraphDebugDotPrint(graph, path.c_str(), flags));
  const off_t end = lseek(file.get(), 0, SEEK_END);
  if (end < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  text->resize(static_cast<size_t>(end));
  for (size_t at = 0; at < text->size();) {
    const ssize_t got =
        pread(file.get(), text->data() + at, text->size() - at, static_cast<off_t>(at));
    if (got <= 0) return CUDA_ERROR_OPERATING_SYSTEM;
    at += static_cast<size_t>(got);
  }
  return CUDA_SUCCESS;
}

CUresult serve_rcuda_graph_alloc_node(GraphServices& services, CUgraphNode node,
                                      CUDA_MEM_ALLOC_NODE_PARAMS* params, CUmemAccessDesc* access,
                                      size_t* access_count) {
  const CUresult result = services.driver.cuGraphMemAllocNodeGetParams(node, params);
  if (result != CUDA_SUCCESS) return result;
  give(params->accessDescs, params->accessDescCount, access, access_count);
  params->accessDescs = nullptr;
  params->poolProps.win32SecurityAttributes = nullptr;
  return CUDA_SUCCESS;
}

CUresult serve_rcuda_graph_batch_node(GraphServices& services, CUgraphNode node, CUcontext* context,
                                      unsigned* flags, CUstreamBatchMemOpParams* operations,
                                      size_t* operation_count) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS found{};
  const CUresult result = services.driver.cuGraphBatchMemOpNodeGetParams(node, &found);
  if (result != CUDA_SUCCESS) return result;
  *context = found.ctx;
  *flags = found.flags;
  give(found.paramArray, found.count, operations, operation_count);
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server
