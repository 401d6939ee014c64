// Stream memory operations: words that a stream writes or waits for. If the word is in mirrored
// memory (client/mirror/mirror.h), the host sees a written word only after it has waited for the
// stream. A stream that waits for such a word might never see the host's write, so the client
// refuses the wait.

#include <span>

#include <cuda.h>

#include "client/copy/locate.h"
#include "client/hostmem/host_memory.h"
#include "client/mirror/mirror.h"
#include "client/objects/kinds.h"
#include "client/process/process.h"
#include "client/route/capture.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

// The flags that the driver accepts for a wait (besides the condition) and for a write.
constexpr unsigned kWaitFlags = CU_STREAM_WAIT_VALUE_FLUSH;
constexpr unsigned kWriteFlags = CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
constexpr unsigned kMostOperations = 256;

// Checks for the errors that a local driver returns in the call. The commands are posted, so the
// worker's error would arrive late.
CUresult check_word(CUdeviceptr address, size_t bytes, bool valid_flags) {
  if (address == 0 || address % bytes != 0 || !valid_flags) return CUDA_ERROR_INVALID_VALUE;
  Location location;
  return locate(address, bytes, Side::kDevice, &location);
}

CUresult check_one(const CUstreamBatchMemOpParams& operation) {
  const bool wide = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                    operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return check_word(operation.waitValue.address, wide ? 8 : 4,
                        (operation.waitValue.flags & ~kWaitFlags) <= CU_STREAM_WAIT_VALUE_NOR);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return check_word(operation.writeValue.address, wide ? 8 : 4,
                        (operation.writeValue.flags & ~kWriteFlags) == 0);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_batch(std::span<const CUstreamBatchMemOpParams> operations) {
  if (operations.size() > kMostOperations) return CUDA_ERROR_INVALID_VALUE;
  for (const CUstreamBatchMemOpParams& operation : operations) {
    RCUDA_RETURN_IF_CUDA_ERROR(check_one(operation));
  }
  return CUDA_SUCCESS;
}

CUresult check_wait(const Route& route, CUdeviceptr address) {
  mirror_reachable(route, reinterpret_cast<const void*>(address));
  const Session& session = *route.session;
  if (!is_mirrored(session, address, 1)) return CUDA_SUCCESS;
  RCUDA_WARN(
      "cuStreamWaitValue on the host memory at %#llx is not supported: %s has its own copy "
      "of the memory, which the program's writes would not reach during the wait",
      static_cast<unsigned long long>(address), session.name().c_str());
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Calls `wait` or `write` for each word of a batch.
template <typename Wait, typename Write>
CUresult for_each_word(std::span<const CUstreamBatchMemOpParams> operations, const Wait& wait,
                       const Write& write) {
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < operations.size() && result == CUDA_SUCCESS; ++i) {
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

CUresult prepare(CUstream stream, std::span<const CUstreamBatchMemOpParams> operations) {
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_stream_route(stream));
  if (CUresult result = check_batch(operations); result != CUDA_SUCCESS) {
    invalidate_capture(stream);
    return result;
  }
  return for_each_word(
      operations, [&](CUdeviceptr address) { return check_wait(route, address); },
      [&](CUdeviceptr address) { return mirror_for(route, stream, address); });
}

// The members waitValue and writeValue have the same layout.
CUresult prepare_one(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address,
                     unsigned flags) {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.flags = flags;
  return prepare(stream, {&operation, 1});
}

CUresult prepare_node(const void* owner, wire::Kind kind,
                      const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const Object* object = find_object(owner, kind);
  if (!object || !batch) return CUDA_ERROR_INVALID_VALUE;
  const Route route = route_of_graph(*object);
  return for_each_word(
      {batch->paramArray, batch->paramArray ? batch->count : 0},
      [&](CUdeviceptr address) { return check_wait(route, address); },
      [&](CUdeviceptr address) {
        mirror_reachable(route, reinterpret_cast<const void*>(address));
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
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, flags));
  return forward_cuStreamWaitValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_one(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, flags));
  return forward_cuStreamWaitValue64_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, flags));
  return forward_cuStreamWriteValue32_v2(stream, address, value, flags);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_one(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, flags));
  return forward_cuStreamWriteValue64_v2(stream, address, value, flags);
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams* operations, unsigned flags) {
  if (flags != 0 || (!operations && count != 0)) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(prepare(stream, {operations, count}));
  return forward_cuStreamBatchMemOp_v2(stream, count, operations, flags);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_node(graph, wire::Kind::kGraph, batch));
  return forward_cuGraphAddBatchMemOpNode(node, graph, dependencies, count, batch);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_node(node, wire::Kind::kGraphNode, batch));
  return forward_cuGraphBatchMemOpNodeSetParams(node, batch);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch) {
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_node(executable, wire::Kind::kGraphExec, batch));
  return forward_cuGraphExecBatchMemOpNodeSetParams(executable, node, batch);
}

}  // extern "C"
