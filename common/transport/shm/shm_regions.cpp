#include "common/transport/shm/shm_regions.h"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/memory_file.h"
#include "common/base/pages.h"
#include "common/transport/violation.h"

namespace rcuda::transport {
namespace {

constexpr size_t kMaxRegions = 1u << 20;

std::string named(uint64_t id) { return "region " + std::to_string(id); }

}  // namespace

Status ShmRegions::add(uint64_t id, uint64_t bytes, uint64_t offset, bool has_backing,
                       UniqueFd fd) {
  MutexLock lock(mutex_);
  if (id <= highest_ || entries_.size() >= kMaxRegions || bytes == 0) {
    return {Code::kProtocol,
            violation("the peer announced " + named(id) + " of " + std::to_string(bytes) +
                      " bytes after " + named(highest_) +
                      ": numbers must increase, regions must not be empty, and the limit is " +
                      std::to_string(kMaxRegions) + " regions")};
  }
  Entry entry;
  entry.bytes = bytes;
  entry.offset = offset;
  entry.has_backing = has_backing;
  if (fd) {
    if (offset <= UINT64_MAX - bytes) {
      RCUDA_RETURN_IF_ERROR(size_memory_file(fd.get(), offset + bytes));
    }
    struct stat file {};
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    const bool inside = ::fstat(fd.get(), &file) == 0 && file.st_size >= 0 &&
                        offset <= static_cast<uint64_t>(file.st_size) &&
                        bytes <= static_cast<uint64_t>(file.st_size) - offset;
    if (!inside || seals < 0 || !(seals & F_SEAL_SHRINK)) {
      return {Code::kProtocol,
              violation("the peer announced " + named(id) + " with " + std::to_string(bytes) +
                        " bytes at offset " + std::to_string(offset) +
                        " of its file: the region must be inside the file, and the file must be "
                        "sealed against shrinking")};
    }
    std::weak_ptr<UniqueFd>& known = files_[{file.st_dev, file.st_ino}];
    entry.file = known.lock();
    if (!entry.file) known = entry.file = std::make_shared<UniqueFd>(std::move(fd));
  }
  highest_ = id;
  entries_.emplace(id, std::move(entry));
  changed_.notify_all();
  return {};
}

Status ShmRegions::retire(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.retired) {
    return {Code::kProtocol, violation("the peer withdrew " + named(id) +
                                       ", which it has not announced or has already withdrawn")};
  }
  Entry& entry = found->second;
  entry.retired = true;
  drop_file(entry);
  entry.transfers.reset();
  if (!entry.user) entries_.erase(found);
  return {};
}

void ShmRegions::drop_file(Entry& entry) {
  entry.file.reset();
  std::erase_if(files_, [](const auto& file) { return file.second.expired(); });
}

void ShmRegions::end(const Status& status) {
  MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = status;
  changed_.notify_all();
}

Result<ShmRegions::Entry*> ShmRegions::find(MutexLock& lock, uint64_t id,
                                            std::chrono::milliseconds patience) {
  const auto settled = [&]() RCUDA_REQUIRES(mutex_) { return id <= highest_ || !ended_.ok(); };
  if (patience.count() == 0) {
    changed_.wait(lock, settled);
  } else {
    changed_.wait_for(lock, patience, settled);
  }
  if (!ended_.ok()) return ended_;
  const auto found = entries_.find(id);
  if (found != entries_.end() && !found->second.retired) return &found->second;
  return Status{Code::kNotFound, named(id) +
                                     " of the peer does not exist: the peer withdrew it, or did "
                                     "not announce it in time"};
}

Result<Mapping> ShmRegions::map_entry(Entry& entry, void* address) {
  const Mapping* known = entry.transfers ? entry.transfers.get() : &entry.user;
  if (!entry.file && !*known) {
    return Status{Code::kSystem,
                  "its file descriptor was lost, because this process had too many open files: "
                  "raise the limit (ulimit -n)"};
  }
  const uint64_t before = entry.offset % page_bytes();
  if (address != nullptr && reinterpret_cast<uintptr_t>(address) % page_bytes() != before) {
    return Status{Code::kInvalidArgument,
                  "cannot map it at the requested address: the address and the region's place in "
                  "its file have different offsets within a page"};
  }
  void* wanted = address == nullptr ? nullptr : static_cast<std::byte*>(address) - before;
  const size_t bytes = entry.bytes + before;
  void* base;
  if (entry.file) {
    base = ::mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | (address != nullptr ? MAP_FIXED : 0), entry.file->get(),
                  static_cast<off_t>(entry.offset - before));
  } else {
    // For shared pages, mremap with a size of 0 makes a second mapping.
    base = ::mremap(known->data(), 0, bytes,
                    MREMAP_MAYMOVE | (address != nullptr ? MREMAP_FIXED : 0), wanted);
  }
  if (base == MAP_FAILED)
    return Status::from_errno(errno, "mapping its " + std::to_string(entry.bytes) + " bytes");
  return Mapping(base, bytes, address != nullptr);
}

Result<void*> ShmRegions::map(uint64_t id, uint64_t bytes, void* address,
                              std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  RCUDA_ASSIGN_OR_RETURN(Entry * found, find(lock, id, patience));
  Entry& entry = *found;
  if (entry.bytes != bytes) {
    return Status{Code::kInvalidArgument,
                  named(id) + " of the peer has " + std::to_string(entry.bytes) +
                      " bytes; the caller maps " + std::to_string(bytes) + " bytes"};
  }
  if (!entry.has_backing) return static_cast<void*>(nullptr);
  if (entry.user) {
    void* const data = data_in(entry, entry.user);
    if (address == nullptr || address == data) return data;
    return Status{Code::kInvalidArgument,
                  named(id) + " of the peer is already mapped at another address"};
  }
  RCUDA_ASSIGN_OR_RETURN(entry.user,
                         map_entry(entry, address).with_context(named(id) + " of the peer"));
  // Also makes the mapping for transfers now, while the descriptor is open. Later, only mremap()
  // from a size of 0 could make it, and the filter of system calls does not let workers enlarge a
  // mapping (server/sandbox/call_filter.h).
  (void)keep_for_transfers(entry);
  if (entry.transfers) drop_file(entry);
  return static_cast<void*>(data_in(entry, entry.user));
}

Status ShmRegions::unmap(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.user) {
    return {Code::kNotFound, "cannot unmap " + named(id) + " of the peer: it is not mapped"};
  }
  Entry& entry = found->second;
  if (entry.retired) {
    entries_.erase(found);
    return {};
  }
  Status kept = keep_for_transfers(entry);
  const Mapping ends = std::move(entry.user);
  return kept;
}

Status ShmRegions::keep_for_transfers(Entry& entry) {
  if (entry.transfers) return {};
  RCUDA_ASSIGN_OR_RETURN(Mapping mapping, map_entry(entry, nullptr));
  entry.transfers = std::make_shared<Mapping>(std::move(mapping));
  if (entry.user) drop_file(entry);
  return {};
}

bool ShmRegions::arrived(uint64_t id) {
  MutexLock lock(mutex_);
  return id <= highest_ || !ended_.ok();
}

Result<ShmRegions::Piece> ShmRegions::piece(uint64_t id, uint64_t offset, uint64_t bytes,
                                            std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  RCUDA_ASSIGN_OR_RETURN(Entry * found, find(lock, id, patience));
  Entry& entry = *found;
  if (bytes > entry.bytes || offset > entry.bytes - bytes) {
    return Status{Code::kInvalidArgument,
                  "a transfer of " + std::to_string(bytes) + " bytes at offset " +
                      std::to_string(offset) + " is outside of " + named(id) +
                      " of the peer, which has " + std::to_string(entry.bytes) + " bytes"};
  }
  if (!entry.has_backing) {
    return Status{Code::kUnsupported, named(id) +
                                          " of the peer has no backing file, so shared memory "
                                          "cannot reach it"};
  }
  RCUDA_RETURN_IF_ERROR(keep_for_transfers(entry).with_context(named(id) + " of the peer"));
  return Piece{data_in(entry, *entry.transfers) + offset, entry.transfers};
}

std::byte* ShmRegions::data_in(const Entry& entry, const Mapping& mapping) {
  return mapping.data() + (mapping.size() - entry.bytes);
}

}  // namespace rcuda::transport
