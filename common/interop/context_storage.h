// Values that NVIDIA's runtime stores with a context, by key (the table CONTEXT_LOCAL_STORAGE).
//
// The runtime looks up a value in most of its calls. Each thread caches its last lookup, valid
// while the storage's generation is unchanged. So get() of the same value costs a few comparisons
// and takes no mutex. All other calls take a mutex. Any thread. Destructors run outside the mutex.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include <cuda.h>

#include "common/base/mutex.h"

namespace rcuda::interop {

class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  // Replaces an existing value without running its destructor.
  void put(CUcontext context, void* key, void* value, Destructor destructor);
  // Returns false if there is no such value. Does not run the destructor; the caller owns the
  // value.
  bool remove(CUcontext context, void* key);
  std::optional<void*> get(CUcontext context, void* key);
  bool has_values(CUcontext context);
  // Removes all values of `context` and runs their destructors.
  void destroy(CUcontext context);

 private:
  struct Value {
    void* value;
    Destructor destructor;
  };
  Mutex mutex_;
  std::map<std::pair<CUcontext, void*>, Value> values_ RCUDA_GUARDED_BY(mutex_);
  std::atomic<uint64_t> generation_{1};
};

}  // namespace rcuda::interop
