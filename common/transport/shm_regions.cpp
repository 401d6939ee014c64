#include "common/transport/shm_regions.h"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rcuda::transport {
namespace {

constexpr size_t kMaxRegions = 1u << 20;

std::string named(uint64_t id) { return "region " + std::to_string(id); }

}  // namespace

Status ShmRegions::add(uint64_t id, uint64_t bytes, uint64_t offset, UniqueFd fd) {
  std::lock_guard lock(mutex_);
  if (id <= highest_ || entries_.size() >= kMaxRegions || bytes == 0) {
    return {Code::kProtocol, "protocol violation: bad announcement of " + named(id)};
  }
  Entry entry;
  entry.bytes = bytes;
  entry.offset = offset;
  if (fd) {
    struct stat file {};
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    const bool inside = ::fstat(fd.get(), &file) == 0 && file.st_size >= 0 &&
                        offset <= static_cast<uint64_t>(file.st_size) &&
                        bytes <= static_cast<uint64_t>(file.st_size) - offset;
    if (!inside || seals < 0 || !(seals & F_SEAL_SHRINK)) {
      return {Code::kProtocol, "protocol violation: " + named(id) +
                                   " is not inside its file, or the file is not sealed"};
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
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.retired) {
    return {Code::kProtocol, "protocol violation: " + named(id) + " retired but not announced"};
  }
  Entry& entry = found->second;
  entry.retired = true;
  entry.file.reset();
  entry.transfers.reset();
  if (!entry.user) entries_.erase(found);
  std::erase_if(files_, [](const auto& file) { return file.second.expired(); });
  return {};
}

void ShmRegions::end(const Status& status) {
  std::lock_guard lock(mutex_);
  if (ended_.ok()) ended_ = status;
  changed_.notify_all();
}

Result<ShmRegions::Entry*> ShmRegions::find(Lock& lock, uint64_t id,
                                            std::chrono::milliseconds patience) {
  const auto settled = [&] { return id <= highest_ || !ended_.ok(); };
  if (patience.count() == 0) {
    changed_.wait(lock, settled);
  } else {
    changed_.wait_for(lock, patience, settled);
  }
  if (!ended_.ok()) return ended_;
  const auto found = entries_.find(id);
  if (found != entries_.end() && !found->second.retired) return &found->second;
  return Status{Code::kNotFound, named(id) + " of the peer does not exist"};
}

Result<Mapping> ShmRegions::map_entry(const Entry& entry, void* address, std::byte** data) {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t before = entry.offset % page;
  if (address != nullptr && reinterpret_cast<uintptr_t>(address) % page != before) {
    return Status{Code::kInvalidArgument, "address and backing differ in their place in the page"};
  }
  void* hint = address == nullptr ? nullptr : static_cast<std::byte*>(address) - before;
  void* base = ::mmap(hint, entry.bytes + before, PROT_READ | PROT_WRITE,
                      MAP_SHARED | (address != nullptr ? MAP_FIXED : 0), entry.file->get(),
                      static_cast<off_t>(entry.offset - before));
  if (base == MAP_FAILED) return Status::from_errno(errno, "mapping a region of the peer");
  *data = static_cast<std::byte*>(base) + before;
  return Mapping(base, entry.bytes + before, address != nullptr);
}

Result<void*> ShmRegions::map(uint64_t id, uint64_t bytes, void* address,
                              std::chrono::milliseconds patience) {
  Lock lock(mutex_);
  Result<Entry*> found = find(lock, id, patience);
  if (!found) return found.status();
  Entry& entry = **found;
  if (entry.bytes != bytes) {
    return Status{Code::kInvalidArgument, named(id) + " of the peer has " +
                                              std::to_string(entry.bytes) + " bytes where " +
                                              std::to_string(bytes) + " are to be mapped"};
  }
  if (!entry.file) return static_cast<void*>(nullptr);
  if (entry.user) {
    if (address == nullptr || address == entry.user_data) {
      return static_cast<void*>(entry.user_data);
    }
    return Status{Code::kInvalidArgument, named(id) + " is mapped elsewhere already"};
  }
  Result<Mapping> mapping = map_entry(entry, address, &entry.user_data);
  if (!mapping) return mapping.status();
  entry.user = std::move(*mapping);
  return static_cast<void*>(entry.user_data);
}

Status ShmRegions::unmap(uint64_t id) {
  Lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second.user) {
    return {Code::kNotFound, named(id) + " of the peer is not mapped"};
  }
  if (found->second.retired) {
    entries_.erase(found);
  } else {
    const Mapping ends = std::move(found->second.user);
  }
  return {};
}

bool ShmRegions::arrived(uint64_t id) {
  std::lock_guard lock(mutex_);
  return id <= highest_ || !ended_.ok();
}

Result<ShmRegions::Piece> ShmRegions::piece(uint64_t id, uint64_t offset, uint64_t bytes,
                                            std::chrono::milliseconds patience) {
  Lock lock(mutex_);
  Result<Entry*> found = find(lock, id, patience);
  if (!found) return found.status();
  Entry& entry = **found;
  if (bytes > entry.bytes || offset > entry.bytes - bytes) {
    return Status{Code::kInvalidArgument, "transfer outside of " + named(id)};
  }
  if (!entry.file) {
    return Status{Code::kUnsupported, named(id) + " has no backing: shared memory cannot reach it"};
  }
  if (!entry.transfers) {
    std::byte* data = nullptr;
    Result<Mapping> mapping = map_entry(entry, nullptr, &data);
    if (!mapping) return mapping.status();
    entry.transfers = std::make_shared<Mapping>(std::move(*mapping));
  }
  // The mapping starts at the page in which the region starts.
  std::byte* data = entry.transfers->data() + (entry.transfers->size() - entry.bytes) + offset;
  return Piece{data, entry.transfers};
}

}  // namespace rcuda::transport
