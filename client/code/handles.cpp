#include "client/code/handles.h"

#include "client/code/functions.h"
#include "client/objects/code.h"
#include "client/process/process.h"
#include "client/route/route.h"
#include "common/cuda/return_if_error.h"

namespace rcuda::client {
namespace {

bool is_code(wire::Kind kind) {
  return kind == wire::Kind::kLibrary || kind == wire::Kind::kKernel ||
         kind == wire::Kind::kFunction;
}

// Libraries and kernels have an id per session. A kernel is also accepted where a function is
// expected.
CUresult resolve_code(const void* handle, wire::Kind kind, Route* route, wire::ObjectId* id) {
  auto* library = kind == wire::Kind::kLibrary ? find<Library>(handle) : nullptr;
  auto* kernel = kind == wire::Kind::kLibrary ? nullptr : find<Kernel>(handle);
  if (!library && !kernel) return CUDA_ERROR_INVALID_HANDLE;
  // Libraries are independent of contexts: without a current context, any session works.
  if (!route->session) *route = target_anywhere();
  if (library) return id_on(*library, *route->session, route->context, id);
  if (kind == wire::Kind::kKernel) {
    FunctionInfo* info;
    const CUresult result = info_on(*kernel, *route, &info);
    if (result == CUDA_SUCCESS) *id = info->id;
    return result;
  }
  Function* function;
  const CUresult result = function_in(*kernel, *route, &function);
  if (result == CUDA_SUCCESS) *id = function->id;
  return result;
}

}  // namespace

CUresult resolve_handle(const void* handle, wire::Kind kind, Route* route, wire::ObjectId* id) {
  if (!handle || !is_code(kind)) return resolve(handle, kind, route, id);
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const CUresult result = resolve_code(handle, kind, route, id);
  const bool may_be_function = kind == wire::Kind::kFunction && result == CUDA_ERROR_INVALID_HANDLE;
  return may_be_function ? resolve(handle, kind, route, id) : result;
}

}  // namespace rcuda::client
