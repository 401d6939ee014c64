// cuIpc*MemHandle: memory of cuMemAlloc mapped into another process of the same user.
//
// A handle names the exporting process, its memory file and the range in it; the importer opens the
// file through /proc and maps the range. The pages stay valid for the importer when the exporter
// exits.
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/unique_fd.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

struct MemoryHandle {
  uint32_t magic = 0;
  int32_t process = 0;
  int32_t file = 0;
  uint32_t reserved = 0;
  uint64_t inode = 0;  // detects a reused process id or descriptor
  uint64_t file_offset = 0;
  uint64_t bytes = 0;
  CUuuid device{};
};
static_assert(sizeof(MemoryHandle) <= sizeof(CUipcMemHandle));

constexpr uint32_t kMagic = 0x31637069;

// Opening a handle again returns the same address and is counted. A context's end also closes it.
struct Opened {
  std::mutex mutex;
  std::map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Allocation>> by_origin;  // inode and offset
};
Opened& opened() {
  static auto* instance = new Opened;
  return *instance;
}

CUresult map_handle(Context& context, const MemoryHandle& handle,
                    std::shared_ptr<Allocation>* allocation) {
  Device* device = device_with_uuid(handle.device);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  rcuda::UniqueFd file(::open(path, O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || status.st_ino != handle.inode) {
    RCUDA_WARN("IPC handle: %s cannot be opened; has its process ended, or is it another user's?",
               path);
    return CUDA_ERROR_MAP_FAILED;
  }
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  if (handle.bytes == 0 || handle.file_offset > file_bytes ||
      handle.bytes > file_bytes - handle.file_offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t page = 4096, before = handle.file_offset % page;
  const size_t mapped_bytes = round_up(before + handle.bytes, page);
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        file.get(), static_cast<off_t>(handle.file_offset - before));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Allocation>();
  made->mapping = reinterpret_cast<uint64_t>(mapped);
  made->mapping_bytes = mapped_bytes;
  made->address = made->mapping + before;
  made->bytes = handle.bytes;
  made->kind = MemoryKind::kImported;
  made->device = device;
  made->owner = &context;
  made->id = next_memory_id();
  *allocation = made;
  memory_registry().add(std::move(made));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  std::shared_ptr<Allocation> allocation = memory_registry().find(address);
  if (!out || !allocation || allocation->kind != MemoryKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MemoryHandle handle;
  handle.magic = kMagic;
  handle.process = ::getpid();
  handle.file = allocation->arena->file();
  struct stat status {};
  if (::fstat(handle.file, &status) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  handle.inode = status.st_ino;
  handle.file_offset = allocation->block.file_offset;
  handle.bytes = allocation->bytes;
  handle.device = allocation->device->uuid();
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &handle, sizeof handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle in,
                                       unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  MemoryHandle handle;
  std::memcpy(static_cast<void*>(&handle), &in, sizeof handle);
  if (!address || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.magic != kMagic) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The exporting process already has the memory.
  if (handle.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  Opened& state = opened();
  std::lock_guard lock(state.mutex);
  std::erase_if(state.by_origin, [](const auto& entry) { return entry.second.expired(); });
  const std::pair origin(handle.inode, handle.file_offset);
  std::shared_ptr<Allocation> allocation;
  if (const auto known = state.by_origin.find(origin); known != state.by_origin.end()) {
    allocation = known->second.lock();
  }
  if (allocation && memory_registry().find_base(allocation->address) == allocation) {
    ++allocation->open_count;
  } else if (CUresult result = map_handle(*context, handle, &allocation)) {
    return result;
  } else {
    state.by_origin[origin] = allocation;
  }
  *address = allocation->address;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle,
                                    unsigned int flags) {
  return cuIpcOpenMemHandle_v2(address, handle, flags);
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  if (CUresult result = context->synchronize()) return result;
  Opened& state = opened();
  std::lock_guard lock(state.mutex);
  std::shared_ptr<Allocation> allocation = memory_registry().find_base(address);
  if (!allocation || allocation->kind != MemoryKind::kImported || allocation->pool) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (--allocation->open_count > 0) return CUDA_SUCCESS;
  std::erase_if(state.by_origin,
                [&](const auto& entry) { return entry.second.lock() == allocation; });
  if (std::shared_ptr<Allocation> gone =
          memory_registry().remove(address, [](const Allocation&) { return true; })) {
    release_memory(*gone);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
