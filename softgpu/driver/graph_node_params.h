// Node parameters: checks the structs of the graph API and converts them to Operations and back.
//
// Used when a node is added, changed, or changed in an executable graph. Each make_* function fills
// `content`, or returns the error of the call; `content` is then not valid. Any thread; nothing
// blocks; no lock is needed.
#pragma once

#include <memory>

#include <cuda.h>

#include "softgpu/driver/graph.h"
#include "softgpu/driver/operation.h"

namespace softgpu::driver {

struct NodeContent {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  Operation operation;
  std::shared_ptr<Context> context;
};

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS_v2* params, NodeContent* content);
CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS_v1* params, NodeContent* content);
// `context` null: the current context.
CUresult make_copy_node(const CUDA_MEMCPY3D* params, CUcontext context, NodeContent* content);
CUresult make_fill_node(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context,
                        NodeContent* content);
CUresult make_host_node(const CUDA_HOST_NODE_PARAMS* params, NodeContent* content);
CUresult make_event_record_node(CUevent event, NodeContent* content);
CUresult make_event_wait_node(CUevent event, NodeContent* content);
CUresult make_mem_op_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, NodeContent* content);
// Clones the graph. The caller must not hold graph_mutex().
CUresult make_child_node(CUgraph child, NodeContent* content);
// Reserves the memory and sets params->dptr.
CUresult make_allocate_node(CUDA_MEM_ALLOC_NODE_PARAMS* params, NodeContent* content);
// Makes a new node with empty bodies. Does not check for which graph the handle was made. Unlike
// the other functions, it is not for changes of a node.
CUresult make_conditional_node(const CUDA_CONDITIONAL_NODE_PARAMS* params, NodeContent* content);
CUresult make_free_node(CUdeviceptr address, NodeContent* content);
// Calls the function above that fits params->type.
CUresult make_node(CUgraphNodeParams* params, NodeContent* content);

// Return the parameters of a node, which must be a kernel node, a copy node or a fill node. The
// node owns the kernel parameters to which the first function's result points.
CUDA_KERNEL_NODE_PARAMS_v2 kernel_params_of(GraphNode& node);
CUDA_MEMCPY3D copy_params_of(const GraphNode& node);
CUDA_MEMSET_NODE_PARAMS fill_params_of(const GraphNode& node);

}  // namespace softgpu::driver
