// LocalMemory: the registrations of this side's memory. Used by BulkEngine and its Link.
//
// A transfer uses the first of these that applies:
//   - If the memory is inside a region that this side exposes (page-locked client memory, staging
//     slots of a worker, GPU memory): the region's registration. The CPU copies nothing.
//   - If the transfer is smaller than a threshold: none. The caller copies through its own slots.
//   - Otherwise: a new registration, for this transfer only.
// A refused registration is not a failure of the transfer: the slots serve any size.
//
// The threshold is the size where copying costs as much as registering and deregistering. It is
// measured once per process, when it is first needed.
//
// Any thread may call. expose() and prepare() block while memory is registered. All references to a
// registration must be released before the protection domain.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/transport/verbs/handles.h"

namespace rcuda::transport::verbs {

struct Registration {
  uintptr_t base = 0;
  size_t bytes = 0;
  Mr mr;
  bool contains(uintptr_t address, size_t count) const {
    return address >= base && address - base <= bytes && count <= bytes - (address - base);
  }
};

class LocalMemory {
 public:
  explicit LocalMemory(std::atomic<uint64_t>& registrations) : registrations_(registrations) {}

  void start(ibv_pd* pd) { pd_ = pd; }

  Result<std::shared_ptr<Registration>> expose(void* base, size_t bytes);
  Result<std::shared_ptr<Registration>> expose_device(void* base, size_t bytes,
                                                      const DeviceMemory& memory);
  void withdraw(const std::shared_ptr<Registration>& registration);
  // Returns the registration of an exposed region that contains the range, or nullptr.
  std::shared_ptr<Registration> find(const void* local, size_t bytes);

  // Returns the registration that a transfer should use; nullptr: the caller must copy.
  std::shared_ptr<Registration> prepare(const void* local, size_t bytes);

 private:
  Result<std::shared_ptr<Registration>> add(std::shared_ptr<Registration> registration);
  size_t threshold();

  std::atomic<uint64_t>& registrations_;
  ibv_pd* pd_ = nullptr;
  std::atomic<bool> refusal_reported_{false};

  Mutex mutex_;
  // The exposed registrations by their base.
  std::multimap<uintptr_t, std::shared_ptr<Registration>> exposed_ RCUDA_GUARDED_BY(mutex_);
  size_t longest_ RCUDA_GUARDED_BY(mutex_) = 0;  // the largest size in exposed_ so far
};

}  // namespace rcuda::transport::verbs
