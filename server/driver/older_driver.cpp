#include "server/driver/older_driver.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "server/driver/kernel_book.h"

namespace rcuda::server {
namespace {

// The table as it was loaded. Never freed, because the functions below are called until the process
// ends.
const api::DriverTable* original = nullptr;

// Older drivers have no edges that carry data.
void clear(CUgraphEdgeData* edges, const size_t* count, CUresult result) {
  if (edges && count && result == CUDA_SUCCESS) std::fill_n(edges, *count, CUgraphEdgeData{});
}

bool carry_data(const CUgraphEdgeData* edges, size_t count) {
  constexpr CUgraphEdgeData kPlain{};
  return edges && std::any_of(edges, edges + count, [&](const CUgraphEdgeData& edge) {
           return std::memcmp(&edge, &kPlain, sizeof edge) != 0;
         });
}

CUresult get_edges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                   size_t* count) {
  const CUresult result = original->cuGraphGetEdges(graph, from, to, count);
  clear(edges, count, result);
  return result;
}

CUresult get_dependencies(CUgraphNode node, CUgraphNode* found, CUgraphEdgeData* edges,
                          size_t* count) {
  const CUresult result = original->cuGraphNodeGetDependencies(node, found, count);
  clear(edges, count, result);
  return result;
}

CUresult get_dependent_nodes(CUgraphNode node, CUgraphNode* found, CUgraphEdgeData* edges,
                             size_t* count) {
  const CUresult result = original->cuGraphNodeGetDependentNodes(node, found, count);
  clear(edges, count, result);
  return result;
}

CUresult add_dependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                          const CUgraphEdgeData* edges, size_t count) {
  if (carry_data(edges, count)) return CUDA_ERROR_NOT_SUPPORTED;
  return original->cuGraphAddDependencies(graph, from, to, count);
}

CUresult remove_dependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                             const CUgraphEdgeData* edges, size_t count) {
  if (carry_data(edges, count)) return CUDA_ERROR_INVALID_VALUE;  // there is no such edge
  return original->cuGraphRemoveDependencies(graph, from, to, count);
}

CUresult capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies,
                      const CUgraphEdgeData** edges, size_t* count) {
  size_t found = 0;
  const CUresult result =
      original->cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, &found);
  if (count) *count = found;
  if (edges) {
    // Valid until the thread's next call, at least as long as the driver's array of nodes.
    static thread_local std::vector<CUgraphEdgeData> plain;
    plain.assign(found, {});
    *edges = plain.data();
  }
  return result;
}

CUresult update_capture_dependencies(CUstream stream, CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, unsigned flags) {
  if (carry_data(edges, count)) return CUDA_ERROR_NOT_SUPPORTED;
  return original->cuStreamUpdateCaptureDependencies(stream, dependencies, count, flags);
}

template <typename Function, typename Older>
void replace(Function*& missing, Function* replacement, Older* older) {
  if (!missing && older) missing = replacement;
}

}  // namespace

void complete(api::DriverTable* table) {
  original = new api::DriverTable(*table);
  replace(table->cuGraphGetEdges_v2, &get_edges, table->cuGraphGetEdges);
  replace(table->cuGraphNodeGetDependencies_v2, &get_dependencies,
          table->cuGraphNodeGetDependencies);
  replace(table->cuGraphNodeGetDependentNodes_v2, &get_dependent_nodes,
          table->cuGraphNodeGetDependentNodes);
  replace(table->cuGraphAddDependencies_v2, &add_dependencies, table->cuGraphAddDependencies);
  replace(table->cuGraphRemoveDependencies_v2, &remove_dependencies,
          table->cuGraphRemoveDependencies);
  replace(table->cuStreamGetCaptureInfo_v3, &capture_info, table->cuStreamGetCaptureInfo_v2);
  replace(table->cuStreamUpdateCaptureDependencies_v2, &update_capture_dependencies,
          table->cuStreamUpdateCaptureDependencies);
  keep_kernel_book(table);
}

}  // namespace rcuda::server
