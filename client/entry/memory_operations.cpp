// Stream memory operations: words that a stream writes or waits for. If the worker has its own
// page-locked memory (client/process/mirror.h), the host sees a written word only after it has
// waited for the stream. A stream that waits for a word would never see the host's write, so this
// is refused.

#include <cuda.h>

#include "client/memory/host_memory.h"
#include "client/objects/kinds.h"
#include "client/process/mirror.h"
#include "client/process/process.h"
#include "common/base/log.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

CUresult check_wait(const Target& target, CUdeviceptr address) {
  mirror_reachable(target, reinterpret_cast<const void*>(address));
  const Session& session = *target.session;
  if (!is_mirrored(session, address, 1)) return CUDA_SUCCESS;
  RCUDA_WARN("%s has its own copy of the memory at %#llx: a stream cannot wait for a word there",
             session.name().c_str(), static_cast<unsigned long long>(address));
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult prepare_wait(CUstream stream, CUdeviceptr address) {
  Target target;
  wire::ObjectId id;
  const CUresult result = resolve_without_pacing(stream, &target, &id);
  return result == CUDA_SUCCESS ? check_wait(target, address) : result;
}

CUresult prepare_write(CUstream stream, CUdeviceptr address) {
  Target target;
  wire::ObjectId id;
  const CUresult result = resolve_without_pacing(stream, &target, &id);
  return result == CUDA_SUCCESS ? mirror_for(target, stream, address) : result;
}

// Visits each word of a batch. waitValue and writeValue have the address at the same offset.
template <typename Wait, typename Write>
CUresult for_each_word(const CUstreamBatchMemOpParams* operations, unsigned count, const Wait& wait,
                       const Write& write) {
  CUresult result = CUDA_SUCCESS;
  for (unsigned i = 0; operations && i < count && result == CUDA_SUCCESS; ++i) {
    switch (operations[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        result = wait(operations[i].waitValue.address);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = write(operations[i].writeValue.address);
        break;
      default:
        break;
    }
  }
  return result;
}

CUresult prepare_node(const void* owner, wire::Kind kind,
                      const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  if (CUresult result = Process::get().check(); result != CUDA_SUCCESS) return result;
  const Object* object = find_object(owner, kind);
  if (!object || !batch) return CUDA_ERROR_INVALID_VALUE;
  const Target target = target_of_graph(*object);
  return for_each_word(
      batch->paramArray, batch->count,
      [&](CUdeviceptr address) { return check_wait(target, address); },
      [&](CUdeviceptr address) {
        mirror_reachable(target, reinterpret_cast<const void*>(address));
        return CUDA_SUCCESS;
      });
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned flags) {
  const CUresult result = prepare_wait(stream, address);
  return result == CUDA_SUCCESS ? forward_cuStreamWaitValue32_v2(stream, address, value, flags)
                                : result;
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned flags) {
  const CUresult result = prepare_wait(stream, address);
  return result == CUDA_SUCCESS ? forward_cuStreamWaitValue64_v2(stream, address, value, flags)
                                : result;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned flags) {
  const CUresult result = prepare_write(stream, address);
  return result == CUDA_SUCCESS ? forward_cuStreamWriteValue32_v2(stream, address, value, flags)
                                : result;
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned flags) {
  const CUresult result = prepare_write(stream, address);
  return result == CUDA_SUCCESS ? forward_cuStreamWriteValue64_v2(stream, address, value, flags)
                                : result;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams* operations, unsigned flags) {
  const CUresult result = for_each_word(
      operations, count, [&](CUdeviceptr address) { return prepare_wait(stream, address); },
      [&](CUdeviceptr address) { return prepare_write(stream, address); });
  return result == CUDA_SUCCESS ? forward_cuStreamBatchMemOp_v2(stream, count, operations, flags)
                                : result;
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  const CUresult result = prepare_node(graph, wire::Kind::kGraph, batch);
  return result == CUDA_SUCCESS
             ? forward_cuGraphAddBatchMemOpNode(node, graph, dependencies, count, batch)
             : result;
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  const CUresult result = prepare_node(node, wire::Kind::kGraphNode, batch);
  return result == CUDA_SUCCESS ? forward_cuGraphBatchMemOpNodeSetParams(node, batch) : result;
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  const CUresult result = prepare_node(executable, wire::Kind::kGraphExec, batch);
  return result == CUDA_SUCCESS
             ? forward_cuGraphExecBatchMemOpNodeSetParams(executable, node, batch)
             : result;
}

}  // extern "C"
