// Handlers of contexts (api/table/context.toml): destroy and reset.
#include "api/server_handlers.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/answers/answers.h"
#include "server/executor/answers/device_output.h"
#include "server/executor/core/services.h"
#include "server/executor/core/session_resources.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/opened_memory.h"
#include "server/executor/images/link_states.h"
#include "server/executor/mirrors/mirrors.h"
#include "server/executor/objects/device_resources.h"
#include "server/executor/objects/objects.h"
#include "server/executor/peers/peer_hub.h"
#include "server/executor/streams/completions.h"

namespace rcuda::server {
namespace {

// Ends the pending completions of the context with an error, forgets the worker's state of the
// context and of its objects, and unbinds the ids of these objects. Call it before the driver ends
// the context, because later the context's events and streams must not be queried.
void forget_context(ContextServices& services, ContextState& context) {
  services.completions.drop_context(context, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  services.peers.forget_context(context.handle);
  services.mirrors.forget_context(context);
  services.objects.forget_objects_of(context);
}

}  // namespace

CUresult serve_cuCtxDestroy_v2(ContextServices& services, CUcontext ctx) {
  ContextState* const context = services.objects.find_context(ctx);
  const wire::ObjectId id = context ? context->id : 0;
  if (context) forget_context(services, *context);
  const CUresult result = services.driver.cuCtxDestroy_v2(ctx);
  if (result == CUDA_SUCCESS) services.opened.end_context(ctx);
  services.links.remove_all_of(id);
  // The driver has unlocked the memory that was first page-locked in this context. Other contexts
  // may still use it.
  if (services.objects.make_current(wire::primary_context_id(0)) == CUDA_SUCCESS) {
    services.host_memory.lock_again();
  }
  return result;
}

CUresult serve_cuDevicePrimaryCtxReset_v2(ContextServices& services, CUdevice dev) {
  const api::DriverTable& driver = services.driver;
  ContextState* const context = services.objects.primary_of(dev);
  if (!context) return CUDA_ERROR_INVALID_DEVICE;
  forget_context(services, *context);
  // The engine's streams are in the primary contexts, so the engine ends here. The client
  // introduces the peer workers again.
  services.peers.shut();
  const CUresult reset = driver.cuDevicePrimaryCtxReset_v2(dev);
  services.links.remove_all_of(context->id);
  if (reset != CUDA_SUCCESS) return reset;
  services.opened.end_context(context->handle);
  services.output.drain();  // the driver writes the remaining output during the reset
  // The session still needs the device's primary context, so the worker retains the new context.
  // The driver may have unlocked the worker's page-locked memory with the old context.
  driver.cuDevicePrimaryCtxRelease_v2(dev);
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuDevicePrimaryCtxRetain(&context->handle, dev));
  RCUDA_RETURN_IF_CUDA_ERROR(services.objects.make_current(context->id));
  services.answers.forget_sticky();
  services.host_memory.lock_again();
  const SessionResources& resources = services.resources;
  unsigned flags = 0;
  if (driver.cuMemHostGetFlags(&flags, resources.staging) == CUDA_SUCCESS) return CUDA_SUCCESS;
  return driver.cuMemHostRegister_v2(resources.staging, resources.pinned_bytes,
                                     CU_MEMHOSTREGISTER_PORTABLE);
}

CUresult serve_rcuda_green_destroy(ContextServices& services, CUcontext context) {
  const CUgreenCtx green = services.device_resources.green(context);
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  if (ContextState* const state = services.objects.find_context(context)) {
    forget_context(services, *state);
  }
  services.device_resources.remove_green(context);
  const CUresult result = services.driver.cuGreenCtxDestroy(green);
  (void)services.objects.make_current(wire::primary_context_id(0));
  return result;
}

}  // namespace rcuda::server
