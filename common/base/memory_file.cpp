#include "common/base/memory_file.h"

#include <cerrno>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "common/base/units.h"

namespace rcuda {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

bool may_make_files_of(uint64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         bytes <= limit.rlim_cur;
}

UniqueFd make_memory_file(const char* name, uint64_t bytes) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || !may_make_files_of(bytes)) return file;
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) return file;
  const int error = errno;
  file.reset();
  errno = error;
  return file;
}

bool has_size(int file, uint64_t bytes) {
  struct stat state {};
  return ::fstat(file, &state) == 0 && static_cast<uint64_t>(state.st_size) == bytes;
}

Status size_memory_file(int file, uint64_t bytes) {
  // Files of other kinds have no seals, and are left as they are.
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_GROW) != 0 || !has_size(file, 0)) return {};
  if (!may_make_files_of(bytes)) {
    return {Code::kOutOfMemory, "neither the program nor its server may make a memory file of " +
                                    exact_bytes_text(bytes) +
                                    ": raise the limit of file size (ulimit -f) of one of them"};
  }
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) return {};
  return Status::from_errno(
      errno, "setting the size of the peer's memory file to " + exact_bytes_text(bytes));
}

UniqueFd make_sealed_memory(const char* name, uint64_t bytes) {
  UniqueFd file = make_memory_file(name, bytes);
  if (!file) return file;
  const bool sized = has_size(file.get(), bytes);
  if (sized && ::fcntl(file.get(), F_ADD_SEALS, kSizeSeals) == 0) return file;
  const int error = sized ? errno : EFBIG;
  file.reset();
  errno = error;
  return file;
}

bool is_sealed_memory(int file, uint64_t bytes) {
  const int seals = ::fcntl(file, F_GET_SEALS);
  return seals >= 0 && (seals & kSizeSeals) == kSizeSeals && has_size(file, bytes);
}

void Unmap::operator()(void* memory) const { ::munmap(memory, bytes); }

Mapped<void> map_file(int file, uint64_t offset, size_t bytes, int protection) {
  void* const memory =
      ::mmap(nullptr, bytes, protection, MAP_SHARED, file, static_cast<off_t>(offset));
  return {memory == MAP_FAILED ? nullptr : memory, Unmap{bytes}};
}

}  // namespace rcuda
