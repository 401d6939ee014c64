#include "client/route/host_functions.h"

#include <utility>

#include "client/mirror/mirror.h"
#include "client/route/capture.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "client/session/timeline.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

// Posts the host function, after changes of mirrored memory. `in_graph`: sends no mirrored memory,
// because each launch of the graph sends it.
CUresult send(const Route& route, const wire::LaunchHostBody& body, bool in_graph) {
  if (!in_graph) {
    if (CUresult result = push_mirrors(route); result != CUDA_SUCCESS) {
      route.session->events().remove_callback(body.callback);
      return result;
    }
  }
  const HostWrite writing(route.timeline);
  CUresult result = route.session->post(route, body);
  const bool is_launched = result == CUDA_SUCCESS;
  if (is_launched) result = route.session->take_error();
  // Unless the session is lost, an error of take_error() is from an earlier command, and the worker
  // still calls the function.
  if (result == CUDA_SUCCESS || (is_launched && !route.session->lost())) return result;
  return route.session->events().remove_callback(body.callback) ? result : CUDA_SUCCESS;
}

CUresult launch(CUstream stream, WorkerEvents::GraphCallback callback) {
  RCUDA_RETURN_IF_CUDA_ERROR(find_work_route(stream).result());
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_paced_stream(stream));
  wire::LaunchHostBody body{};
  body.stream = route.id;
  WorkerEvents& events = route.session->events();
  const bool captures = may_capture(stream);
  const Result<uint64_t> id =
      captures ? events.add_graph_callback(std::move(callback))
               : events.add_callback(
                     [function = std::move(callback.function)](CUresult) { function(); });
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  body.callback = *id;
  return send(route, body, captures);
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
  RCUDA_RETURN_IF_CUDA_ERROR(find_work_route(stream).result());
  RCUDA_ASSIGN_OR_RETURN(const StreamRoute route, find_paced_stream(stream));
  wire::LaunchHostBody body{};
  body.stream = route.id;
  if (may_capture(stream)) {
    invalidate_capture(stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const Result<uint64_t> id = route.session->events().add_callback(std::move(callback), true);
  if (!id) return CUDA_ERROR_OUT_OF_MEMORY;
  body.callback = *id;
  body.is_stream_callback = 1;
  return send(route, body, false);
}

}  // namespace rcuda::client
