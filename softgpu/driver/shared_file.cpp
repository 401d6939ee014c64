#include "softgpu/driver/shared_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace softgpu::driver {
namespace {

constexpr uint64_t kMagic = 0x3175'7067'7466'6f73;  // "softgpu1"
constexpr size_t kHeaderBytes = 4096;

}  // namespace

rcuda::UniqueFd make_shared_file(const char* name, SharedFileHeader header) {
  header.magic = kMagic;
  rcuda::UniqueFd file(::memfd_create(name, MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(header.bytes + kHeaderBytes)) != 0 ||
      ::pwrite(file.get(), &header, sizeof header, static_cast<off_t>(header.bytes)) !=
          static_cast<ssize_t>(sizeof header)) {
    return {};
  }
  return file;
}

bool read_shared_file(int file, SharedFileHeader* header) {
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) < kHeaderBytes) {
    return false;
  }
  const auto bytes = static_cast<uint64_t>(status.st_size) - kHeaderBytes;
  return ::pread(file, header, sizeof *header, static_cast<off_t>(bytes)) ==
             static_cast<ssize_t>(sizeof *header) &&
         header->magic == kMagic && header->bytes == bytes;
}

}  // namespace softgpu::driver
