// ShmRegions: the peer's regions, as announced by the peer, and their mappings in this process.
//
// The control channel's thread calls add() and retire(); any thread may call the other functions.
// Lookups wait for an announcement that has not arrived yet. Ids are assigned and announced in
// ascending order, so a region whose id is not above the highest seen is either known or retired.
//
// Announcements cannot be trusted: size, offset and seals are checked before anything is mapped, so
// the peer cannot cause a fault here.
//
// Descriptors are scarce (ulimit -n). So a region's descriptor is kept only until map(), and
// further mappings are made from the first mapping. Regions of the same file share one descriptor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <sys/types.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/transport/mapping.h"

namespace rcuda::transport {

class ShmRegions {
 public:
  // `fd` is empty for a region without backing, or if this process had no free descriptor for it.
  // In the second case, map() and piece() of the region fail with that reason.
  Status add(uint64_t id, uint64_t bytes, uint64_t offset, bool has_backing, UniqueFd fd);
  Status retire(uint64_t id);
  // No more announcements will arrive: waiting lookups return `status`.
  void end(const Status& status);

  // Map a region of the peer into this process, and unmap it (Link::map(), Link::unmap()).
  Result<void*> map(uint64_t id, uint64_t bytes, void* address, std::chrono::milliseconds patience);
  Status unmap(uint64_t id);

  // A part of a region, for a transfer. Keeps the region's mapping alive.
  struct Piece {
    std::byte* data = nullptr;
    std::shared_ptr<Mapping> keeps;
  };
  // Whether piece() would return without waiting.
  bool arrived(uint64_t id);
  Result<Piece> piece(uint64_t id, uint64_t offset, uint64_t bytes,
                      std::chrono::milliseconds patience);

 private:
  struct Entry {
    uint64_t bytes = 0;
    uint64_t offset = 0;
    bool has_backing = false;
    std::shared_ptr<UniqueFd> file;      // the backing, until map()
    std::shared_ptr<Mapping> transfers;  // made by the first map() or piece()
    Mapping user;                        // made by map()
    bool retired = false;                // withdrawn; the entry remains for `user` only
  };

  Result<Entry*> find(MutexLock& lock, uint64_t id, std::chrono::milliseconds patience)
      RCUDA_REQUIRES(mutex_, lock);
  Result<Mapping> map_entry(Entry& entry, void* address);
  Status keep_for_transfers(Entry& entry) RCUDA_REQUIRES(mutex_);
  void drop_file(Entry& entry) RCUDA_REQUIRES(mutex_);
  // Where the region starts in `mapping`, which begins at the start of the region's first page.
  static std::byte* data_in(const Entry& entry, const Mapping& mapping);

  Mutex mutex_;
  CondVar changed_;
  uint64_t highest_ RCUDA_GUARDED_BY(mutex_) = 0;
  Status ended_ RCUDA_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Entry> entries_ RCUDA_GUARDED_BY(mutex_);
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<UniqueFd>> files_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::transport
