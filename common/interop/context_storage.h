// Values that NVIDIA's runtime keeps with a context, by key (the table CONTEXT_LOCAL_STORAGE).
//
// The runtime looks a value up on most of its calls, so get() costs two comparisons when the thread
// asks for what it asked last: each thread caches one entry, valid while the storage's generation
// is unchanged. put, remove and destroy take a mutex. Any thread. Destructors run outside the
// mutex.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <cuda.h>

namespace rcuda::interop {

class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  // Replaces a value that is there, without running its destructor.
  void put(CUcontext context, void* key, void* value, Destructor destructor);
  // False when there is no such value. Does not run the destructor: whoever deletes owns the value.
  bool remove(CUcontext context, void* key);
  std::optional<void*> get(CUcontext context, void* key);
  // Removes everything of `context` and runs the destructors.
  void destroy(CUcontext context);

 private:
  struct Value {
    void* value;
    Destructor destructor;
  };
  std::mutex mutex_;
  std::map<std::pair<CUcontext, void*>, Value> values_;
  std::atomic<uint64_t> generation_{1};
};

}  // namespace rcuda::interop
