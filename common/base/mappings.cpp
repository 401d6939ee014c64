#include "common/base/mappings.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/base/file_io.h"
#include "common/base/pages.h"
#include "common/base/proc_self.h"
#include "common/base/unique_fd.h"

namespace rcuda {
namespace {

// From include/uapi/linux/fs.h of Linux 6.11. Installed headers may be older.
struct MappingQuery {  // struct procmap_query
  uint64_t size, flags, address;
  uint64_t begin, end, vma_flags, page_bytes, offset, inode;
  uint32_t device_major, device_minor, name_bytes, build_id_bytes;
  uint64_t name, build_id;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kMappingQuery = _IOWR('f', 17, MappingQuery);  // PROCMAP_QUERY
constexpr uint64_t kReadable = 1, kWritable = 2, kExecutable = 4, kShared = 8;
constexpr uint64_t kCoveringOrNext = 0x10;  // PROCMAP_QUERY_COVERING_OR_NEXT_VMA

std::atomic<uint64_t> queries{0};

UniqueFd open_own(const char* file) {
  return UniqueFd(::open(proc_self(file).c_str(), O_RDONLY | O_CLOEXEC));
}

// Appends the mappings in [begin, end) to *parts by PROCMAP_QUERY. Returns false if the kernel
// lacks this query.
bool query(int maps, uint64_t begin, uint64_t end, std::vector<MappedPart>* parts) {
  for (uint64_t at = begin; at < end;) {
    MappingQuery query{};
    query.size = sizeof query;
    query.flags = kCoveringOrNext;
    query.address = at;
    if (::ioctl(maps, kMappingQuery, &query) != 0) {
      return errno == ENOENT;  // no further mapping
    }
    if (query.begin >= end) break;
    MappedPart part{query.begin, query.end, query.inode, 0, (query.vma_flags & kShared) != 0};
    if (query.vma_flags & kReadable) part.protection |= PROT_READ;
    if (query.vma_flags & kWritable) part.protection |= PROT_WRITE;
    if (query.vma_flags & kExecutable) part.protection |= PROT_EXEC;
    parts->push_back(part);
    at = query.end;
  }
  return true;
}

// Whether the part maps a file whose pages the kernel writes back. The kernel does not write back
// files in memory: those of tmpfs, hugetlbfs and ramfs, and those without a path (memfd, shared
// anonymous memory).
bool is_written_back(int maps, const MappedPart& part) {
  char path[PATH_MAX] = {};
  MappingQuery query{};
  query.size = sizeof query;
  query.address = part.begin;
  query.name = reinterpret_cast<uintptr_t>(path);
  query.name_bytes = sizeof path;
  if (::ioctl(maps, kMappingQuery, &query) != 0 || path[0] != '/') return false;
  // If the file is deleted, queries its folder, which is on the same file system.
  for (char* end = path + std::strlen(path); end; end = std::strrchr(path, '/')) {
    *end = '\0';
    struct stat file {};
    struct statfs system {};
    if (::stat(path[0] ? path : "/", &file) == 0 &&
        file.st_dev == makedev(query.device_major, query.device_minor) &&
        ::statfs(path[0] ? path : "/", &system) == 0) {
      const auto type = static_cast<uint32_t>(system.f_type);
      return type != TMPFS_MAGIC && type != HUGETLBFS_MAGIC && type != RAMFS_MAGIC;
    }
  }
  return false;
}

// Parses a line of /proc/self/maps, without its newline: "begin-end rwxp offset device inode path".
bool parse(const char* line, MappedPart* part, const char** path) {
  char* next = nullptr;
  part->begin = std::strtoull(line, &next, 16);
  if (*next != '-') return false;
  part->end = std::strtoull(next + 1, &next, 16);
  if (*next != ' ' || std::strlen(next) < 6) return false;
  const char* const access = next + 1;
  part->protection = (access[0] == 'r' ? PROT_READ : 0) | (access[1] == 'w' ? PROT_WRITE : 0) |
                     (access[2] == 'x' ? PROT_EXEC : 0);
  part->is_shared = access[3] == 's';
  const char* const device = std::strchr(access + 5, ' ');
  const char* const inode = device ? std::strchr(device + 1, ' ') : nullptr;
  if (!inode) return false;
  part->inode = std::strtoull(inode + 1, &next, 10);
  *path = next + std::strspn(next, " ");
  return true;
}

UniqueFd open_maps() {
  queries.fetch_add(1, std::memory_order_relaxed);
  return open_own("maps");
}

std::vector<MappedPart> clipped(std::vector<MappedPart> parts, uint64_t begin, uint64_t end) {
  for (MappedPart& part : parts) {
    part.begin = std::max(part.begin, begin);
    part.end = std::min(part.end, end);
  }
  return parts;
}

}  // namespace

bool each_mapping(const std::function<bool(const MappedPart&, const char* path)>& visit) {
  const UniqueFd maps = open_maps();
  if (!maps) return false;
  std::string text(64 << 10, '\0');
  size_t kept = 0;  // bytes of a line whose end has not been read
  while (true) {
    const ssize_t got = ::read(maps.get(), text.data() + kept, text.size() - 1 - kept);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    char* line = text.data();
    char* const text_end = line + kept + got;
    *text_end = '\0';
    while (char* const newline =
               static_cast<char*>(std::memchr(line, '\n', static_cast<size_t>(text_end - line)))) {
      *newline = '\0';
      MappedPart part;
      const char* path = nullptr;
      if (parse(line, &part, &path) && !visit(part, path)) return true;
      line = newline + 1;
    }
    kept = static_cast<size_t>(text_end - line);
    if (kept == text.size() - 1) kept = 0;  // not a line of the kernel: no path is so long
    std::memmove(text.data(), line, kept);
  }
}

std::vector<MappedPart> mappings_in(uint64_t begin, uint64_t end) {
  const UniqueFd maps = open_maps();
  if (!maps) return unlisted_mappings_in(begin, end);
  std::vector<MappedPart> parts;
  if (!query(maps.get(), begin, end, &parts)) return listed_mappings_in(begin, end);
  return clipped(std::move(parts), begin, end);
}

std::vector<MappedPart> listed_mappings_in(uint64_t begin, uint64_t end) {
  std::vector<MappedPart> parts;
  (void)each_mapping([&](const MappedPart& part, const char*) {
    if (part.begin >= end) return false;
    if (part.end > begin) parts.push_back(part);
    return true;
  });
  return clipped(std::move(parts), begin, end);
}

std::vector<MappedPart> unlisted_mappings_in(uint64_t begin, uint64_t end) {
  const uint64_t first = page_of(begin);
  // MS_ASYNC only checks that every page is mapped.
  if (::msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) != 0) return {};
  return {{begin, end, 0, PROT_READ | PROT_WRITE, true}};
}

std::vector<MappedPart> parts_in(const std::vector<MappedPart>& parts, uint64_t begin,
                                 uint64_t end) {
  std::vector<MappedPart> found;
  for (const MappedPart& part : parts) {
    if (part.end > begin && part.begin < end) found.push_back(part);
  }
  return clipped(std::move(found), begin, end);
}

uint64_t mapping_queries() { return queries.load(std::memory_order_relaxed); }

bool cover(const std::vector<MappedPart>& parts, uint64_t begin, uint64_t end) {
  uint64_t reached = begin;
  for (const MappedPart& part : parts) {
    if (reached >= end || part.begin > reached) break;
    reached = std::max(reached, part.end);
  }
  return reached >= end;
}

Pinning pinning_of(const std::vector<MappedPart>& parts, uint64_t begin, uint64_t end,
                   bool writes) {
  if (!cover(parts, begin, end)) return Pinning::kUnmapped;
  const int needed = writes ? PROT_READ | PROT_WRITE : PROT_READ;
  for (const MappedPart& part : parts) {
    if ((part.protection & needed) != needed) return Pinning::kInaccessible;
    if (!writes || !part.is_shared || part.inode == 0) continue;
    const UniqueFd maps = open_own("maps");
    if (maps && is_written_back(maps.get(), part)) return Pinning::kWrittenBack;
  }
  return Pinning::kPossible;
}

bool says_pinned(const char* status) {
  const char* const line = std::strstr(status, "\nVmPin:");
  return line && std::strtoull(line + std::strlen("\nVmPin:"), nullptr, 10) != 0;
}

bool any_page_pinned() {
  const UniqueFd status = open_own("status");
  // At a limit of descriptors the answer is unknown: assume that a page is pinned.
  if (!status && (errno == EMFILE || errno == ENFILE)) return true;
  std::string text;
  if (status) (void)append_to_end(status.get(), &text);
  return says_pinned(text.c_str());
}

}  // namespace rcuda
