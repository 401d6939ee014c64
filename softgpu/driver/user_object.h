// User objects: reference-counted objects of the application that graphs keep alive
// (cuUserObject*).
//
// References of the application, of graphs and of executable graphs are counted together. When the
// last is released, the destructor callback runs on a thread of the driver, where CUDA calls are
// not allowed. Any thread; nothing blocks.
#pragma once

#include <atomic>
#include <memory>

#include <cuda.h>

namespace softgpu::driver {

class UserObject {
 public:
  UserObject(void* pointer, CUhostFn destroy, unsigned references)
      : pointer_(pointer), destroy_(destroy), references_(references) {}

  CUuserObject handle() { return reinterpret_cast<CUuserObject>(this); }
  void retain(unsigned count) { references_.fetch_add(count, std::memory_order_relaxed); }
  // Releases at most the existing references. The last release invalidates the handle and destroys
  // the object.
  void release(unsigned count);

 private:
  void* const pointer_;
  const CUhostFn destroy_;
  std::atomic<unsigned> references_;
};

std::shared_ptr<UserObject> user_object_from_handle(CUuserObject handle);

}  // namespace softgpu::driver
