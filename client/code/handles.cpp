#include "client/code/handles.h"

#include "client/code/functions.h"
#include "client/objects/code.h"
#include "client/process/process.h"
#include "client/route/find_route.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

bool is_code(wire::Kind kind) {
  return kind == wire::Kind::kLibrary || kind == wire::Kind::kKernel ||
         kind == wire::Kind::kFunction;
}

bool is_graph(wire::Kind kind) {
  return kind == wire::Kind::kGraph || kind == wire::Kind::kGraphNode ||
         kind == wire::Kind::kGraphExec;
}

// Finds the library's id in the route's session, or the kernel's id on the route's device. A kernel
// is also accepted where a function is expected.
CUresult resolve_code(const void* handle, wire::Kind kind, const Route& route, wire::ObjectId* id) {
  if (kind == wire::Kind::kLibrary) {
    auto* library = find<Library>(handle);
    return library ? id_on(*library, *route.session, route.context, id) : CUDA_ERROR_INVALID_HANDLE;
  }
  auto* kernel = find<Kernel>(handle);
  if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
  if (kind == wire::Kind::kKernel) {
    FunctionInfo* info;
    const CUresult result = info_on(*kernel, route, &info);
    if (result == CUDA_SUCCESS) *id = info->id;
    return result;
  }
  Function* function;
  const CUresult result = function_in(*kernel, route, &function);
  if (result == CUDA_SUCCESS) *id = function->id;
  return result;
}

// Whether the handle is a function, and not a kernel that is passed as a function.
bool is_function(const void* handle, wire::Kind kind) {
  return kind == wire::Kind::kFunction && !find<Kernel>(handle);
}

}  // namespace

CudaResult<Route> find_handle_route(const void* handle, wire::Kind kind) {
  if (is_code(kind) && !is_function(handle, kind)) {
    RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
    const bool is_live = kind == wire::Kind::kLibrary ? find<Library>(handle) != nullptr
                                                      : find<Kernel>(handle) != nullptr;
    return is_live ? CudaResult<Route>(any_route()) : CUDA_ERROR_INVALID_HANDLE;
  }
  const Object* object;
  RCUDA_RETURN_IF_CUDA_ERROR(find_live(handle, kind, &object));
  return is_graph(kind) ? route_of_graph(*object) : route_of(*object);
}

CUresult resolve_handle(const void* handle, wire::Kind kind, const Route& route,
                        wire::ObjectId* id) {
  *id = 0;
  if (!handle) return CUDA_SUCCESS;
  if (is_code(kind) && !is_function(handle, kind)) return resolve_code(handle, kind, route, id);
  const Object* object;
  RCUDA_RETURN_IF_CUDA_ERROR(find_live(handle, kind, &object));
  if (route.session != object->session) return CUDA_ERROR_INVALID_HANDLE;
  *id = object->id;
  return CUDA_SUCCESS;
}

bool is_kernel(CUfunction handle) { return find<Kernel>(handle) != nullptr; }

}  // namespace rcuda::client
