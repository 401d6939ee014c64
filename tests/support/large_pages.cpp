// Preloaded into a client: simulates pages of 64 KiB, as many AArch64 machines have. sysconf()
// reports this size, new mappings are aligned to it, and functions that change mappings fail with
// EINVAL for other addresses. Applies to calls of programs and libraries; glibc's own calls use the
// pages of this machine.
#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr uintptr_t kPage = 64u << 10;

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPage == 0; }
size_t whole(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

void* fail() {
  errno = EINVAL;
  return MAP_FAILED;
}

void* map(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  return at(static_cast<uintptr_t>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset)));
}

// Reserves free addresses. The caller replaces the reservation with a mapping.
void* find_place(size_t bytes) {
  void* found = map(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return found;
  const auto begin = reinterpret_cast<uintptr_t>(found);
  const uintptr_t first = whole(begin), end = begin + bytes + kPage;
  if (first != begin) syscall(SYS_munmap, begin, first - begin);
  if (first + bytes != end) syscall(SYS_munmap, first + bytes, end - first - bytes);
  return at(first);
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

long __sysconf(int name);  // glibc's sysconf(), which this file's sysconf() hides

EXPORTED long sysconf(int name) noexcept {
  return name == _SC_PAGESIZE ? static_cast<long>(kPage) : __sysconf(name);
}

EXPORTED int getpagesize() noexcept { return kPage; }

EXPORTED void* mmap(void* address, size_t bytes, int protection, int flags, int file,
                    off_t offset) noexcept {
  if (offset % kPage != 0) return fail();
  bytes = whole(bytes);
  if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0) {
    return aligned(address) ? map(address, bytes, protection, flags, file, offset) : fail();
  }
  void* place = find_place(bytes);
  if (place == MAP_FAILED) return place;
  void* mapped = map(place, bytes, protection, flags | MAP_FIXED, file, offset);
  if (mapped == MAP_FAILED) syscall(SYS_munmap, place, bytes);
  return mapped;
}
EXPORTED void* mmap64(void* address, size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  return mmap(address, bytes, protection, flags, file, offset);
}

EXPORTED int munmap(void* address, size_t bytes) noexcept {
  if (!aligned(address)) return fail(), -1;
  return static_cast<int>(syscall(SYS_munmap, address, whole(bytes)));
}

EXPORTED int mprotect(void* address, size_t bytes, int protection) noexcept {
  if (!aligned(address)) return fail(), -1;
  return static_cast<int>(syscall(SYS_mprotect, address, whole(bytes), protection));
}

EXPORTED void* mremap(void* address, size_t bytes, size_t new_bytes, int flags, ...) noexcept {
  if (!aligned(address)) return fail();
  bytes = whole(bytes), new_bytes = whole(new_bytes);
  void* place = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list rest;
    va_start(rest, flags);
    place = va_arg(rest, void*);
    va_end(rest);
    if (!aligned(place)) return fail();
  } else if ((flags & MREMAP_MAYMOVE) != 0) {
    place = find_place(new_bytes);
    if (place == MAP_FAILED) return place;
    flags |= MREMAP_FIXED;
  }
  return at(static_cast<uintptr_t>(
      syscall(SYS_mremap, address, bytes, new_bytes, flags, place)));
}

}  // extern "C"
