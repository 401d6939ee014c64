#include "client/route/host_functions.h"

#include <utility>

#include "client/mirror/mirror.h"
#include "client/route/capture.h"
#include "client/route/route.h"
#include "client/session/session.h"
#include "client/session/timeline.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

CUresult find_stream(CUstream stream, Target* target, wire::LaunchHostBody* body) {
  RCUDA_RETURN_IF_CUDA_ERROR(target_of_stream(stream, target));
  return resolve(stream, wire::Kind::kStream, target, &body->stream);
}

// `in_graph`: does not send the mirrored memory, because each launch of the graph does.
CUresult send(const Target& target, const wire::LaunchHostBody& body, bool in_graph) {
  if (!in_graph) {
    if (CUresult result = push_mirrors(target); result != CUDA_SUCCESS) {
      target.session->events().remove_callback(body.callback);
      return result;
    }
  }
  const HostWrite writing(target.timeline);
  CUresult result = target.session->post(target, body);
  const bool is_launched = result == CUDA_SUCCESS;
  if (is_launched) result = target.session->take_error();
  // Unless the session is lost, an error of take_error() is from an earlier command, and the worker
  // still calls the function.
  if (result == CUDA_SUCCESS || (is_launched && !target.session->lost())) return result;
  return target.session->events().remove_callback(body.callback) ? result : CUDA_SUCCESS;
}

CUresult launch(CUstream stream, WorkerEvents::GraphCallback callback) {
  Target target;
  wire::LaunchHostBody body{};
  RCUDA_RETURN_IF_CUDA_ERROR(find_stream(stream, &target, &body));
  WorkerEvents& events = target.session->events();
  const bool captures = may_capture(stream);
  const Result<uint64_t> id =
      captures ? events.add_graph_callback(std::move(callback))
               : events.add_callback(
                     [function = std::move(callback.function)](CUresult) { function(); });
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  body.callback = *id;
  return send(target, body, captures);
}

}  // namespace

CUresult launch_host_function(CUstream stream, CUhostFn function, void* user_data) {
  WorkerEvents::GraphCallback callback;
  callback.function = [=] { function(user_data); };
  callback.given = {function, user_data};
  return launch(stream, std::move(callback));
}

CUresult launch_graph_function(CUstream stream, WorkerEvents::GraphCallback callback) {
  return launch(stream, std::move(callback));
}

CUresult launch_stream_callback(CUstream stream, std::function<void(CUresult)> callback) {
  Target target;
  wire::LaunchHostBody body{};
  RCUDA_RETURN_IF_CUDA_ERROR(find_stream(stream, &target, &body));
  if (may_capture(stream)) {
    invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const Result<uint64_t> id = target.session->events().add_callback(std::move(callback), true);
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  body.callback = *id;
  body.is_stream_callback = 1;
  return send(target, body, false);
}

}  // namespace rcuda::client
