// LocalMemory: how the adapter reaches memory of this side. Used by BulkEngine and its Link.
//
// For a transfer, in this order:
//   - inside a region that this side exposes: the region's registration, no byte is copied by the
//     CPU (pinned client memory, staging slots of a worker, GPU memory);
//   - below a threshold: none, the caller copies through slots of its own;
//   - a registration kept from an earlier transfer, while UnmapMonitor vouches for it;
//   - a registration for this transfer alone. One that is asked for a second time is kept.
// A registration that is refused is no failure here either: the slots serve any size.
//
// The threshold is measured when it is first needed, once per process: where copying costs what
// registering and deregistering costs.
//
// Any thread may call. expose() and prepare() block for registration. Registrations live as long as
// somebody holds them, and must be gone before the protection domain.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

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
  ~LocalMemory() { clear(); }

  void start(ibv_pd* pd) { pd_ = pd; }

  Result<std::shared_ptr<Registration>> expose(void* base, size_t bytes);
  Result<std::shared_ptr<Registration>> expose_device(void* base, size_t bytes,
                                                      const DeviceMemory& memory);
  void withdraw(const std::shared_ptr<Registration>& registration);
  // The exposed region that holds the range, or nullptr.
  std::shared_ptr<Registration> find(const void* local, size_t bytes);

  // What a transfer should use; nullptr: copy.
  std::shared_ptr<Registration> prepare(const void* local, size_t bytes);
  // Lets go of what is kept.
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

  std::mutex mutex_;                                                 // guards the rest
  std::multimap<uintptr_t, std::shared_ptr<Registration>> exposed_;  // by base
  size_t longest_ = 0;                                               // of exposed_, so far
  std::list<Kept> kept_;                                             // most recently used first
  size_t kept_bytes_ = 0;
  std::array<Asked, 64> asked_{};  // lately, in turns
  size_t next_asked_ = 0;
};

}  // namespace rcuda::transport::verbs
