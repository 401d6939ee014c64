// Graph queries that generated code cannot serve: the DOT text, and nodes whose parameters point to
// arrays.

#include <cstdio>
#include <memory>
#include <vector>

#include <cuda.h>

#include "client/objects/arena.h"
#include "client/objects/graph.h"
#include "client/process/process.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The most elements that the client fetches for a node. A reply has room for them, and no known
// node has more.
constexpr size_t kMostAccess = 64;       // devices
constexpr size_t kMostOperations = 256;  // CUDA allows this many in one batch

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace

extern "C" {

// The text comes from the worker's driver and contains the worker's addresses. The client writes
// the file.
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  Blob text;
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_graph_dot(graph, flags, &text));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "we"), &std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  return CUDA_SUCCESS;
}

// The node owns the array that this call or cuGraphBatchMemOpNodeGetParams returns, as in a local
// driver.
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUmemAccessDesc>& access = node->answers().access;
  access.resize(kMostAccess);
  size_t count = access.size();
  CUDA_MEM_ALLOC_NODE_PARAMS found{};
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_graph_alloc_node(handle, &found, access.data(), &count));
  if (count > access.size()) return CUDA_ERROR_NOT_SUPPORTED;
  access.resize(count);
  found.accessDescs = count ? access.data() : nullptr;
  found.accessDescCount = count;
  *params = found;
  return CUDA_SUCCESS;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode handle, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  GraphNode* node;
  RCUDA_RETURN_IF_CUDA_ERROR(resolve_object(handle, &node));
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUstreamBatchMemOpParams>& operations = node->answers().operations;
  operations.resize(kMostOperations);
  size_t count = operations.size();
  CUDA_BATCH_MEM_OP_NODE_PARAMS found{};
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_graph_batch_node(handle, &found.ctx, &found.flags, operations.data(), &count));
  if (count > operations.size()) return CUDA_ERROR_NOT_SUPPORTED;
  operations.resize(count);
  found.count = static_cast<unsigned>(count);
  found.paramArray = operations.data();
  *params = found;
  return CUDA_SUCCESS;
}

}  // extern "C"
