// LocalMemory: how the adapter reaches memory of this side. Used by BulkEngine and its Link.
//
// A transfer uses the first of these that applies:
//   - The memory is inside a region that this side exposes: the region's registration. The CPU
//   copies
//     nothing (pinned client memory, staging slots of a worker, GPU memory).
//   - The transfer is smaller than a threshold: none. The caller copies through its own slots.
//   - A registration was kept from an earlier transfer, and UnmapMonitor confirms it: that one.
//   - Otherwise a new registration, for this transfer only. It is kept at the second request.
// A refused registration is no failure of the transfer: the slots serve any size.
//
// The threshold is the size where copying costs as much as registering and deregistering. It is
// measured once per process, when it is first needed.
//
// Any thread may call. expose() and prepare() block while memory is registered. A registration
// lives as long as somebody holds it, and must be released before the protection domain is.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
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

// How many bytes each LocalMemory of this process may keep registered between transfers.
void set_kept_bytes_limit(uint64_t bytes);

class LocalMemory {
 public:
  explicit LocalMemory(std::atomic<uint64_t>& registrations) : registrations_(registrations) {}
  ~LocalMemory() { clear(); }

  void start(ibv_pd* pd) { pd_ = pd; }

  Result<std::shared_ptr<Registration>> expose(void* base, size_t bytes);
  Result<std::shared_ptr<Registration>> expose_device(void* base, size_t bytes,
                                                      const DeviceMemory& memory);
  void withdraw(const std::shared_ptr<Registration>& registration);
  // The exposed region that contains the range, or nullptr.
  std::shared_ptr<Registration> find(const void* local, size_t bytes);

  // The registration that a transfer should use; nullptr: copy.
  std::shared_ptr<Registration> prepare(const void* local, size_t bytes);
  // Releases the kept registrations.
  void clear();

 private:
  struct Kept {
    std::shared_ptr<Registration> registration;
    int watch = -1;
  };
  struct Asked {
    uintptr_t base = 0;
    size_t bytes = 0;
  };

  Result<std::shared_ptr<Registration>> add(std::shared_ptr<Registration> registration);
  std::shared_ptr<Registration> register_range(uintptr_t base, size_t bytes);
  std::shared_ptr<Registration> find_kept(uintptr_t base, size_t bytes);
  bool asked_before(uintptr_t base, size_t bytes);
  void keep(std::shared_ptr<Registration> registration, int watch);
  size_t threshold();

  std::atomic<uint64_t>& registrations_;
  ibv_pd* pd_ = nullptr;
  std::atomic<bool> refusal_told_{false};

  Mutex mutex_;
  // By base.
  std::multimap<uintptr_t, std::shared_ptr<Registration>> exposed_ RCUDA_GUARDED_BY(mutex_);
  size_t longest_ RCUDA_GUARDED_BY(mutex_) = 0;    // size of the largest of exposed_ so far
  std::list<Kept> kept_ RCUDA_GUARDED_BY(mutex_);  // most recently used first
  size_t kept_bytes_ RCUDA_GUARDED_BY(mutex_) = 0;
  // Recent requests; entries are reused in turn.
  std::array<Asked, 64> asked_ RCUDA_GUARDED_BY(mutex_){};
  size_t next_asked_ RCUDA_GUARDED_BY(mutex_) = 0;
};

}  // namespace rcuda::transport::verbs
