#include "softgpu/driver/user_object.h"

#include <algorithm>

#include "softgpu/driver/device.h"
#include "softgpu/driver/graph.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/host_callback.h"
#include "softgpu/driver/worker_threads.h"

namespace softgpu::driver {

void UserObject::release(unsigned count) {
  unsigned before = references_.load(std::memory_order_relaxed);
  unsigned after = 0;
  do {
    if (before == 0) return;
    after = before - std::min(before, count);
  } while (!references_.compare_exchange_weak(before, after, std::memory_order_acq_rel));
  if (after != 0) return;
  handle_table<UserObject>().remove(this);
  // Runs on another thread, because the caller may hold locks that the destructor waits for.
  post_to_worker(
      [destroy = destroy_, pointer = pointer_] { run_application_code(destroy, pointer); });
}

std::shared_ptr<UserObject> user_object_from_handle(CUuserObject handle) {
  return handle_table<UserObject>().find(handle);
}

}  // namespace softgpu::driver

using softgpu::driver::Graph;
using softgpu::driver::UserObject;

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  if (CUresult result = softgpu::driver::check_initialized()) return result;
  if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
      initialRefcount > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto object = std::make_shared<UserObject>(ptr, destroy, initialRefcount);
  softgpu::driver::handle_table<UserObject>().insert(object);
  *object_out = object->handle();
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  if (CUresult result = softgpu::driver::check_initialized()) return result;
  const auto found = softgpu::driver::user_object_from_handle(object);
  if (found == nullptr || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  found->retain(count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  if (CUresult result = softgpu::driver::check_initialized()) return result;
  const auto found = softgpu::driver::user_object_from_handle(object);
  if (found == nullptr || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  found->release(count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  if (CUresult result = softgpu::driver::check_initialized()) return result;
  const auto found = softgpu::driver::user_object_from_handle(object);
  const std::shared_ptr<Graph> owner = softgpu::driver::graph_from_handle(graph);
  if (found == nullptr || owner == nullptr || count == 0 || count > INT32_MAX ||
      (flags & ~CU_GRAPH_USER_OBJECT_MOVE) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((flags & CU_GRAPH_USER_OBJECT_MOVE) == 0) found->retain(count);
  std::lock_guard lock(softgpu::driver::graph_mutex());
  owner->user_objects[found] += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  if (CUresult result = softgpu::driver::check_initialized()) return result;
  const auto found = softgpu::driver::user_object_from_handle(object);
  const std::shared_ptr<Graph> owner = softgpu::driver::graph_from_handle(graph);
  if (found == nullptr || owner == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(softgpu::driver::graph_mutex());
  const auto held = owner->user_objects.find(found);
  if (held == owner->user_objects.end()) return CUDA_ERROR_INVALID_VALUE;
  const unsigned released = std::min(count, held->second);
  held->second -= released;
  if (held->second == 0) owner->user_objects.erase(held);
  found->release(released);
  return CUDA_SUCCESS;
}

}  // extern "C"
