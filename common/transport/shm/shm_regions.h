// ShmRegions: the peer's regions as its announcements describe them, and their mappings here.
//
// add() and retire() run on the control channel's thread; everything else on any thread. Lookups
// wait for an announcement that is still on its way (ids are minted in ascending order and
// announcements keep it, so an id not above the highest seen is either there or retired).
// Announcements are claims: size, offset and seals are checked before anything is mapped, so that
// the peer cannot make an access here fault. Descriptors are scarce (ulimit -n): that of a region
// is kept until the region is mapped, after which further mappings are made of that one, and those
// of one file once, however many regions lie in it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <sys/types.h>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/link.h"
#include "common/transport/mapping.h"

namespace rcuda::transport {

class ShmRegions {
 public:
  // `fd` is empty for a region without backing, or where this process had no room for it: then
  // whoever asks for the region hears of it.
  Status add(uint64_t id, uint64_t bytes, uint64_t offset, bool has_backing, UniqueFd fd);
  Status retire(uint64_t id);
  // Nothing more will arrive: waiting lookups return `status`.
  void end(const Status& status);

  // As Link::map and unmap.
  Result<void*> map(uint64_t id, uint64_t bytes, void* address, std::chrono::milliseconds patience);
  Status unmap(uint64_t id);

  // A piece of a region for a transfer; keeps its mapping alive.
  struct Piece {
    std::byte* data = nullptr;
    std::shared_ptr<Mapping> keeps;
  };
  // True if piece() would not wait.
  bool arrived(uint64_t id);
  Result<Piece> piece(uint64_t id, uint64_t offset, uint64_t bytes,
                      std::chrono::milliseconds patience);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Entry {
    uint64_t bytes = 0;
    uint64_t offset = 0;
    bool has_backing = false;
    std::shared_ptr<UniqueFd> file;      // of the backing, until it is mapped
    std::shared_ptr<Mapping> transfers;  // made by the first piece() or unmap()
    Mapping user;                        // made by map()
    bool retired = false;                // kept only for `user`
  };

  Result<Entry*> find(Lock& lock, uint64_t id, std::chrono::milliseconds patience);
  Result<Mapping> map_entry(Entry& entry, void* address);
  Status keep_for_transfers(Entry& entry);
  void drop_file(Entry& entry);
  // Where the region starts in a mapping, which starts with the page that the region starts in.
  static std::byte* data_in(const Entry& entry, const Mapping& mapping);

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  uint64_t highest_ = 0;
  Status ended_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<UniqueFd>> files_;
};

}  // namespace rcuda::transport
