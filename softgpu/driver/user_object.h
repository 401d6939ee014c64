// User objects: reference-counted things of the application that graphs keep alive (cuUserObject*).
//
// References held by the application, by graphs and by executable graphs are counted together; when
// the last goes, the destructor callback runs on a thread of the driver, where no CUDA call may be
// made. Any thread; nothing blocks.
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
  // Gives back at most what there is; the last one ends the handle and destroys the object.
  void release(unsigned count);

 private:
  void* const pointer_;
  const CUhostFn destroy_;
  std::atomic<unsigned> references_;
};

std::shared_ptr<UserObject> user_object_from_handle(CUuserObject handle);

}  // namespace softgpu::driver
