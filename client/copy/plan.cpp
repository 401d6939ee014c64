#include "client/copy/plan.h"

#include "client/mirror/mirror.h"
#include "client/objects/named.h"
#include "client/route/capture.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Sets the flags of plan->mirrored. If a side is mirrored (client/mirror/mirror.h) and the stream
// does not capture, also sends the application's changes to the worker. With `cpu_copies` (one side
// is pageable), it first waits for the stream's earlier work.
CUresult prepare_mirrors(const Location& destination, const Location& source, bool cpu_copies,
                         CopyPlan* plan) {
  const Session& session = *plan->stream->route.session;
  if (is_mirrored(session, destination.first, destination.bytes)) {
    plan->mirrored |= wire::kDestinationMirrored;
  }
  if (is_mirrored(session, source.first, source.bytes)) plan->mirrored |= wire::kSourceMirrored;
  if (plan->mirrored == 0 || plan->captures) return CUDA_SUCCESS;
  if (cpu_copies) {
    RCUDA_RETURN_IF_CUDA_ERROR(synchronize(plan->stream->route));
  }
  return push_mirrors(plan->stream->route);
}

// CUDA waits for the stream before a synchronous copy of pageable memory to the device. Without
// mirrored memory the application cannot observe this wait, so the client does not wait.
CUresult wait_before_copy(const Route& route) {
  return any_mirrored() ? await_writes(route) : CUDA_SUCCESS;
}

}  // namespace

CUresult prepare_copy(const Location& destination, const Location& source, CUstream stream,
                      bool synchronous, bool worker_copies_host, CopyPlan* plan) {
  const bool to_device = destination.home == Home::kDevice;
  const bool from_device = source.home == Home::kDevice;
  if (to_device && from_device && destination.owner->session != source.owner->session) {
    plan->way = CopyWay::kBetweenServers;
    return CUDA_SUCCESS;
  }
  RCUDA_ASSIGN_OR_RETURN(const CopyStream& found,
                         stream_at(to_device ? destination.owner : source.owner, stream));
  plan->stream.emplace(found);
  const bool pageable = destination.home == Home::kPageable || source.home == Home::kPageable;
  plan->captures = may_capture(stream);
  if (pageable && plan->captures) {
    plan->way = CopyWay::kCapturePageable;
    return CUDA_SUCCESS;
  }
  if (!to_device && !from_device && (pageable || !worker_copies_host)) {
    // This process copies, after all earlier work in the stream.
    plan->way = CopyWay::kOnHost;
    return synchronize(plan->stream->route);
  }
  RCUDA_RETURN_IF_CUDA_ERROR(plan->stream->route.session->await_room());
  RCUDA_RETURN_IF_CUDA_ERROR(prepare_mirrors(destination, source, pageable, plan));
  // A copy that was issued in another session's stream runs in a stream of this session. Nothing
  // makes the other stream wait for the copy, so the caller waits.
  plan->waits = plan->stream->is_elsewhere ||
                (synchronous && !plan->captures && (destination.sync_memops || source.sync_memops));
  if (pageable) {
    plan->way = to_device ? CopyWay::kFromPageable : CopyWay::kToPageable;
    return synchronous && to_device ? wait_before_copy(plan->stream->route) : CUDA_SUCCESS;
  }
  // A synchronous copy within the device memory of one context does not wait without sync_memops.
  // All other synchronous copies wait, also copies of managed memory, which is host memory too.
  // Between two contexts, a synchronous copy is ordered in the default streams of both.
  const bool between =
      to_device && from_device && destination.owner->context != source.owner->context;
  if (synchronous && (between || plan->mirrored != 0 || !(to_device && from_device))) {
    plan->waits = true;
  }
  if (!synchronous || !between) return CUDA_SUCCESS;
  return synchronize(in_default_stream(*source.owner));
}

}  // namespace rcuda::client
