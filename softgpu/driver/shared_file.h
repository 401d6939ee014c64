// SharedFile: files of memory that other processes may open. The last page of a file describes it.
//
// Applications pass exported physical allocations and pools as mere file descriptors. So the page
// after the data holds the kind, the size and the device, and distinguishes these files from
// others. Pure functions; any thread; errors are returned as false or an empty descriptor.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "common/base/unique_fd.h"

namespace softgpu::driver {

enum class SharedFileKind : uint32_t { kPhysicalMemory = 1, kPool = 2 };

struct SharedFileHeader {
  uint64_t magic = 0;
  SharedFileKind kind{};
  int32_t location_type = 0;  // CUmemLocationType
  CUuuid device{};
  uint64_t bytes = 0;  // size of the memory, without the page of this header
};

rcuda::UniqueFd make_shared_file(const char* name, SharedFileHeader header);
// False if the descriptor is not a file of make_shared_file(), or the file is cut short.
bool read_shared_file(int file, SharedFileHeader* header);

}  // namespace softgpu::driver
