#include "client/session/host_functions.h"

#include <utility>

#include "client/session/capture.h"
#include "client/session/marshal.h"
#include "client/session/session.h"

namespace rcuda::client {

CUresult launch_host_function(CUstream stream, std::function<void(CUresult)> function,
                              bool stream_callback) {
  Target target;
  if (CUresult result = target_current(&target); result != CUDA_SUCCESS) return result;
  wire::LaunchHostBody body{};
  if (CUresult result = resolve(stream, wire::Kind::kStream, &target, &body.stream);
      result != CUDA_SUCCESS) {
    return result;
  }
  const bool captured = may_capture(stream);
  if (captured && stream_callback) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  EventThread& events = target.session->events();
  body.callback = events.add_callback(std::move(function), !captured);
  body.is_stream_callback = stream_callback;
  const CUresult result =
      target.session->post(target.context, static_cast<uint16_t>(wire::Custom::kLaunchHost),
                           std::as_bytes(std::span(&body, 1)));
  if (result != CUDA_SUCCESS && target.session->lost()) events.remove_callback(body.callback);
  return result;
}

}  // namespace rcuda::client
