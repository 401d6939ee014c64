// The mappings of this process in a range of addresses, with their protections; and whether memory
// of this process is pinned.
//
// Threads: any. Other threads may change the mappings meanwhile. Blocking: system calls. Since
// Linux 6.11 the time depends on the number of mappings in the range (PROCMAP_QUERY). An older
// kernel lists all mappings below the end of the range, which takes about 0.3 us for each. So a
// caller that needs the same mappings twice should keep them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace rcuda {

// A mapping, or the part of it that lies in the range of interest.
struct MappedPart {
  uint64_t begin = 0, end = 0;
  uint64_t inode = 0;  // 0: anonymous private memory
  int protection = 0;  // PROT_*
  bool is_shared = false;

  size_t bytes() const { return end - begin; }
  void* address() const { return reinterpret_cast<void*>(begin); }
};

// Returns the parts of mappings that lie in [begin, end), in ascending order. Without /proc,
// returns the result of unlisted_mappings_in().
std::vector<MappedPart> mappings_in(uint64_t begin, uint64_t end);
// For use without /proc. Returns the whole range as one part, marked as writable and shared,
// because the memory may be both. Returns no part if a page of the range is not mapped.
std::vector<MappedPart> unlisted_mappings_in(uint64_t begin, uint64_t end);
// Works as mappings_in(), but reads the lines of /proc/self/maps, which is the only way before
// Linux 6.11.
std::vector<MappedPart> listed_mappings_in(uint64_t begin, uint64_t end);
// Calls visit(mapping, path) for each line of /proc/self/maps, in ascending order, until visit()
// returns false. The path is empty for anonymous memory. Returns false if the file cannot be
// opened; errno says why.
bool each_mapping(const std::function<bool(const MappedPart&, const char* path)>& visit);
// Returns the parts of `parts` that lie in [begin, end).
std::vector<MappedPart> parts_in(const std::vector<MappedPart>& parts, uint64_t begin,
                                 uint64_t end);
// For tests: how often the functions above have opened /proc/self/maps.
uint64_t mapping_queries();
// Whether the parts, in ascending order, cover all of [begin, end).
bool cover(const std::vector<MappedPart>& parts, uint64_t begin, uint64_t end);

enum class Pinning {
  kPossible,
  kUnmapped,      // not all of the range is mapped
  kInaccessible,  // a part is not readable or, if `writes`, not writable
  // Writable shared pages of a file that the kernel writes back. Linux 6.5 and later refuse to pin
  // them. Before Linux 6.11, pinning_of() cannot detect them and returns kPossible.
  kWrittenBack,
};
// Whether a driver of the kernel can pin the memory for longer than one system call, as a GPU's
// driver does with memory that a program registers. `writes`: the device may write to it.
// `parts`: as mappings_in() returns them for this range.
Pinning pinning_of(const std::vector<MappedPart>& parts, uint64_t begin, uint64_t end, bool writes);

// Whether a driver of the kernel has pinned memory of this process for longer than one system call:
// fixed buffers of io_uring, registrations of RDMA adapters. Devices use the physical pages, so the
// pinned memory must not move to other pages. The kernel does not report which pages are pinned.
bool any_page_pinned();
// Works as any_page_pinned(), on a text that was read from /proc/self/status.
bool says_pinned(const char* status);

}  // namespace rcuda
