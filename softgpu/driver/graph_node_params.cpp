#include "softgpu/driver/graph_node_params.h"

#include <algorithm>
#include <utility>

#include "common/cuda/memcpy_shapes.h"
#include "softgpu/driver/condition.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/event.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/memop.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/exec/program.h"

namespace softgpu::driver {
namespace {

CUresult find_kernel_function(const CUDA_KERNEL_NODE_PARAMS_v2& params,
                              KernelOperation* operation) {
  // cudart passes a CUkernel in either member; parameters read back from a node have both.
  CUkernel named = reinterpret_cast<CUkernel>(params.func);
  std::shared_ptr<Kernel> kernel = named != nullptr ? kernel_from_handle(named) : nullptr;
  if (kernel == nullptr && params.kern != nullptr) {
    named = params.kern;
    kernel = kernel_from_handle(named);
  }
  if (kernel != nullptr) operation->kernel = named;
  if (params.func != nullptr) return function_from_handle(params.func, &operation->function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::shared_ptr<Context> context;
  if (CUresult result = find_context(params.ctx, &context)) return result;
  return kernel->function_in(*context, &operation->function);
}

// The devices to which `params` gives access, as bits.
CUresult access_mask(const CUDA_MEM_ALLOC_NODE_PARAMS& params, uint32_t* mask) {
  if (params.accessDescCount != 0 && params.accessDescs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < params.accessDescCount; ++i) {
    const CUmemAccessDesc& entry = params.accessDescs[i];
    if (entry.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        device_at(entry.location.id) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (entry.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) *mask |= 1u << entry.location.id;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS_v2* params, NodeContent* content) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  KernelOperation operation;
  if (CUresult result = find_kernel_function(*params, &operation)) return result;
  const LaunchShape shape{{params->gridDimX, params->gridDimY, params->gridDimZ},
                          {params->blockDimX, params->blockDimY, params->blockDimZ},
                          params->sharedMemBytes};
  if (CUresult result = check_launch(*operation.function, shape)) return result;
  if (CUresult result = pack_parameters(operation.function->kernel(), params->kernelParams,
                                        params->extra, &operation.parameters)) {
    return result;
  }
  std::copy(shape.grid, shape.grid + 3, operation.grid);
  std::copy(shape.block, shape.block + 3, operation.block);
  operation.dynamic_shared_bytes = shape.dynamic_shared_bytes;
  operation.came_packed = params->extra != nullptr;
  content->type = CU_GRAPH_NODE_TYPE_KERNEL;
  content->context = operation.function->context().shared_from_this();
  content->operation = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult make_kernel_node(const CUDA_KERNEL_NODE_PARAMS_v1* params, NodeContent* content) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS_v2 converted{
      params->func,         params->gridDimX,  params->gridDimY,  params->gridDimZ,
      params->blockDimX,    params->blockDimY, params->blockDimZ, params->sharedMemBytes,
      params->kernelParams, params->extra,     /*kern=*/nullptr,  /*ctx=*/nullptr};
  return make_kernel_node(&converted, content);
}

CUresult make_copy_node(const CUDA_MEMCPY3D* params, CUcontext context, NodeContent* content) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = find_context(context, &content->context)) return result;
  if (params->WidthInBytes == 0 || params->Height == 0 || params->Depth == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CopyOperation operation{rcuda::cuda::peer_shape(*params)};
  operation.unified = is_unified(operation.shape);
  if (CUresult result = resolve_copy(&operation.shape)) return result;
  content->type = CU_GRAPH_NODE_TYPE_MEMCPY;
  content->operation = operation;
  return CUDA_SUCCESS;
}

CUresult make_fill_node(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context,
                        NodeContent* content) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = find_context(context, &content->context)) return result;
  if ((params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4) ||
      params->width == 0 || params->height == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const FillOperation operation{params->dst,         params->pitch, params->value,
                                params->elementSize, params->width, params->height};
  if (CUresult result = check_fill(operation, content->context->device())) return result;
  content->type = CU_GRAPH_NODE_TYPE_MEMSET;
  content->operation = operation;
  return CUDA_SUCCESS;
}

CUresult make_host_node(const CUDA_HOST_NODE_PARAMS* params, NodeContent* content) {
  if (params == nullptr || params->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  content->type = CU_GRAPH_NODE_TYPE_HOST;
  content->operation = HostOperation{params->fn, nullptr, nullptr, params->userData};
  return CUDA_SUCCESS;
}

CUresult make_event_record_node(CUevent event, NodeContent* content) {
  EventRecordOperation operation{event_from_handle(event)};
  if (operation.event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  content->type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  content->operation = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult make_event_wait_node(CUevent event, NodeContent* content) {
  EventWaitOperation operation{event_from_handle(event)};
  if (operation.event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  content->type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  content->operation = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult make_mem_op_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, NodeContent* content) {
  if (params == nullptr || params->flags != 0 ||
      (params->count != 0 && params->paramArray == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = find_context(params->ctx, &content->context)) return result;
  if (CUresult result = check_mem_ops(*content->context, {params->paramArray, params->count})) {
    return result;
  }
  content->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  content->operation = MemOpOperation{{params->paramArray, params->paramArray + params->count}};
  return CUDA_SUCCESS;
}

CUresult make_child_node(CUgraph child, NodeContent* content) {
  const std::shared_ptr<Graph> graph = graph_from_handle(child);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph_mutex());
  if (graph->has_memory_nodes() || graph->has_conditional_nodes()) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<Graph> copy = graph->clone();
  copy->is_child = true;
  content->type = CU_GRAPH_NODE_TYPE_GRAPH;
  content->operation = ChildGraphOperation{std::move(copy)};
  return CUDA_SUCCESS;
}

CUresult make_allocate_node(CUDA_MEM_ALLOC_NODE_PARAMS* params, NodeContent* content) {
  if (params == nullptr || params->bytesize == 0 ||
      params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Device* device = device_at(params->poolProps.location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::shared_ptr<Context> context = current_context_shared();
  if (context == nullptr || !context->alive() || &context->device() != device) {
    context = device->primary_shared();
  }
  if (!context->alive()) return CUDA_ERROR_INVALID_CONTEXT;
  uint32_t mask = 0;
  if (CUresult result = access_mask(*params, &mask)) return result;
  if (CUresult result = reserve_graph_memory(*context, params->bytesize, mask, &params->dptr)) {
    return result;
  }
  content->type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  content->context = std::move(context);
  content->operation = AllocateOperation{params->dptr, std::make_shared<GraphMemory>(*params)};
  return CUDA_SUCCESS;
}

CUresult make_free_node(CUdeviceptr address, NodeContent* content) {
  const std::shared_ptr<Allocation> memory = memory_registry().find_base(address);
  if (memory == nullptr || memory->kind != MemoryKind::kGraph) return CUDA_ERROR_INVALID_VALUE;
  content->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  content->operation = FreeOperation{address};
  return CUDA_SUCCESS;
}

CUresult make_conditional_node(const CUDA_CONDITIONAL_NODE_PARAMS* params, NodeContent* content) {
  const std::shared_ptr<Condition> condition = Condition::find(params->handle);
  if (condition == nullptr || params->size == 0) return CUDA_ERROR_INVALID_VALUE;
  switch (params->type) {
    case CU_GRAPH_COND_TYPE_IF:
      if (params->size > 2) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_GRAPH_COND_TYPE_WHILE:
      if (params->size != 1) return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_GRAPH_COND_TYPE_SWITCH:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (CUresult result = find_context(params->ctx, &content->context)) return result;
  ConditionalOperation operation{condition, params->type, {}, {}};
  for (unsigned i = 0; i < params->size; ++i) {
    operation.bodies.push_back(Graph::make());
    operation.bodies.back()->is_child = true;
    operation.handles.push_back(operation.bodies.back()->handle());
  }
  content->type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  content->operation = std::move(operation);
  return CUDA_SUCCESS;
}

CUresult make_node(CUgraphNodeParams* params, NodeContent* content) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const int reserved : params->reserved0) {
    if (reserved != 0) return CUDA_ERROR_INVALID_VALUE;
  }
  switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const CUDA_KERNEL_NODE_PARAMS_v3& kernel = params->kernel;
      const CUDA_KERNEL_NODE_PARAMS_v2 converted{
          kernel.func,         kernel.gridDimX,  kernel.gridDimY,  kernel.gridDimZ,
          kernel.blockDimX,    kernel.blockDimY, kernel.blockDimZ, kernel.sharedMemBytes,
          kernel.kernelParams, kernel.extra,     kernel.kern,      kernel.ctx};
      return make_kernel_node(&converted, content);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      if (params->memcpy.flags != 0) return CUDA_ERROR_INVALID_VALUE;
      return make_copy_node(&params->memcpy.copyParams, params->memcpy.copyCtx, content);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& fill = params->memset;
      const CUDA_MEMSET_NODE_PARAMS converted{fill.dst,         fill.pitch, fill.value,
                                              fill.elementSize, fill.width, fill.height};
      return make_fill_node(&converted, fill.ctx, content);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS converted{params->host.fn, params->host.userData};
      return make_host_node(&converted, content);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return make_child_node(params->graph.graph, content);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return make_event_wait_node(params->eventWait.event, content);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return make_event_record_node(params->eventRecord.event, content);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      const CUDA_MEM_ALLOC_NODE_PARAMS_v2& allocate = params->alloc;
      CUDA_MEM_ALLOC_NODE_PARAMS converted{allocate.poolProps, allocate.accessDescs,
                                           allocate.accessDescCount, allocate.bytesize, 0};
      const CUresult result = make_allocate_node(&converted, content);
      if (result == CUDA_SUCCESS) params->alloc.dptr = converted.dptr;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return make_free_node(params->free.dptr, content);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& batch = params->memOp;
      const CUDA_BATCH_MEM_OP_NODE_PARAMS converted{batch.ctx, batch.count, batch.paramArray,
                                                    batch.flags};
      return make_mem_op_node(&converted, content);
    }
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:  // make_conditional_node() is for new nodes only
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUDA_KERNEL_NODE_PARAMS_v2 kernel_params_of(GraphNode& node) {
  auto& operation = std::get<KernelOperation>(node.operation);
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  node.parameter_pointers.clear();
  if (operation.came_packed) {
    node.parameter_bytes = operation.parameters.size();
    node.parameter_pointers = {CU_LAUNCH_PARAM_BUFFER_POINTER, operation.parameters.data(),
                               CU_LAUNCH_PARAM_BUFFER_SIZE, &node.parameter_bytes,
                               CU_LAUNCH_PARAM_END};
    params.extra = node.parameter_pointers.data();
  } else {
    for (const exec::KernelParameter& parameter : operation.function->kernel().parameters) {
      node.parameter_pointers.push_back(operation.parameters.data() + parameter.offset_bytes);
    }
    if (!node.parameter_pointers.empty()) params.kernelParams = node.parameter_pointers.data();
  }
  params.func = operation.function->handle();
  // Without `kern`, cudart cannot find the node's kernel (cudaErrorInvalidDeviceFunction).
  params.kern = operation.kernel;
  params.gridDimX = operation.grid[0];
  params.gridDimY = operation.grid[1];
  params.gridDimZ = operation.grid[2];
  params.blockDimX = operation.block[0];
  params.blockDimY = operation.block[1];
  params.blockDimZ = operation.block[2];
  params.sharedMemBytes = operation.dynamic_shared_bytes;
  params.ctx = node.context->handle();
  return params;
}

CUDA_MEMCPY3D copy_params_of(const GraphNode& node) {
  const auto& copy = std::get<CopyOperation>(node.operation);
  CUDA_MEMCPY3D params = rcuda::cuda::without_contexts(copy.shape);
  if (!copy.unified) return params;
  if (params.srcMemoryType == CU_MEMORYTYPE_HOST) {
    params.srcDevice = reinterpret_cast<CUdeviceptr>(std::exchange(params.srcHost, nullptr));
  }
  if (params.dstMemoryType == CU_MEMORYTYPE_HOST) {
    params.dstDevice = reinterpret_cast<CUdeviceptr>(std::exchange(params.dstHost, nullptr));
  }
  params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  return params;
}

CUDA_MEMSET_NODE_PARAMS fill_params_of(const GraphNode& node) {
  const auto& fill = std::get<FillOperation>(node.operation);
  return {fill.destination,   fill.pitch_bytes,    fill.value,
          fill.element_bytes, fill.width_elements, fill.height};
}

}  // namespace softgpu::driver
