// Helpers of the entry points that change graphs. The caller holds graph_mutex().
#pragma once

#include <cstddef>
#include <vector>

#include <cuda.h>

#include "softgpu/driver/graph.h"

namespace softgpu::driver {

// The nodes in `nodes`, with their edge data if given. CUDA_ERROR_INVALID_VALUE unless all are
// nodes of `graph`.
CUresult find_edges(const Graph& graph, const CUgraphNode* nodes, const CUgraphEdgeData* data,
                    size_t count, std::vector<GraphEdge>* edges);

// Whether the edge is a plain dependency: from the end of a node, and not programmatic.
bool is_default(const CUgraphEdgeData& data);
bool has_duplicates(const std::vector<GraphEdge>& edges);

}  // namespace softgpu::driver
