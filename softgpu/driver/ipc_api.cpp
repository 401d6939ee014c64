// cuIpc*MemHandle: memory of cuMemAlloc mapped into another process of the same user.
//
// The importer gets the exporter's memory file and the range of the allocation in it
// (softgpu/driver/exports.h), and maps the range. The pages stay valid for the importer when the
// exporter exits.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <cuda.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/base/log.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/exports.h"
#include "softgpu/driver/memory.h"

using namespace softgpu::driver;

namespace {

static_assert(sizeof(ExportHandle) <= sizeof(CUipcMemHandle));

// The exporter's description of the memory.
struct MemoryNote {
  uint64_t file_offset = 0;
  uint64_t bytes = 0;
  CUuuid device{};
};
static_assert(sizeof(MemoryNote) <= sizeof(LookupNote));

// Opening a handle again returns the same address and raises the allocation's open_count. The end
// of the context also closes the handle.
struct Opened {
  std::mutex mutex;
  std::map<LookupKey, std::weak_ptr<Allocation>> by_key;
};
Opened& opened() {
  static auto* instance = new Opened;
  return *instance;
}

// nullopt once the allocation has been freed.
std::optional<Export> export_of(const std::weak_ptr<Allocation>& exported) {
  const std::shared_ptr<Allocation> allocation = exported.lock();
  if (!allocation || memory_registry().find_base(allocation->address) != allocation) {
    return std::nullopt;
  }
  const MemoryNote note{allocation->block.file_offset, allocation->bytes,
                        allocation->device->uuid()};
  Export made;
  std::memcpy(made.note.data(), &note, sizeof note);
  made.descriptor = allocation->arena->file();
  made.keeps = allocation;
  return made;
}

CUresult map_handle(Context& context, const ExportHandle& handle,
                    std::shared_ptr<Allocation>* allocation) {
  rcuda::Result<LookupResult> fetched = fetch(handle);
  if (!fetched) return CUDA_ERROR_MAP_FAILED;
  const rcuda::UniqueFd file = std::move(fetched->descriptor);
  MemoryNote note;
  std::memcpy(static_cast<void*>(&note), fetched->note.data(), sizeof note);
  Device* device = device_with_uuid(note.device);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return CUDA_ERROR_MAP_FAILED;
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  if (note.bytes == 0 || note.file_offset > file_bytes ||
      note.bytes > file_bytes - note.file_offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t before = note.file_offset % kPageBytes;
  const size_t mapped_bytes = round_up(before + note.bytes, kPageBytes);
  void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        file.get(), static_cast<off_t>(note.file_offset - before));
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Allocation>();
  made->mapping = reinterpret_cast<uint64_t>(mapped);
  made->mapping_bytes = mapped_bytes;
  made->address = made->mapping + before;
  made->bytes = note.bytes;
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
  const rcuda::Result<ExportHandle> handle =
      offer(ExportKind::kMemory, allocation->id,
            [exported = std::weak_ptr(allocation)] { return export_of(exported); });
  if (!handle) {
    RCUDA_ERROR("cuIpcGetMemHandle cannot export the memory: %s",
                handle.status().message().c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &*handle, sizeof *handle);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle in,
                                       unsigned int flags) {
  Context* context = nullptr;
  if (CUresult result = enter(&context)) return result;
  ExportHandle handle;
  std::memcpy(static_cast<void*>(&handle), &in, sizeof handle);
  if (!address || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      !handle.is_valid(ExportKind::kMemory)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The exporting process already has the memory.
  if (handle.is_of_this_process()) return CUDA_ERROR_INVALID_CONTEXT;
  Opened& state = opened();
  std::lock_guard lock(state.mutex);
  std::erase_if(state.by_key, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<Allocation> allocation;
  if (const auto known = state.by_key.find(handle.key); known != state.by_key.end()) {
    allocation = known->second.lock();
  }
  if (allocation && memory_registry().find_base(allocation->address) == allocation) {
    ++allocation->open_count;
  } else if (CUresult result = map_handle(*context, handle, &allocation)) {
    return result;
  } else {
    state.by_key[handle.key] = allocation;
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
  std::erase_if(state.by_key, [&](const auto& entry) { return entry.second.lock() == allocation; });
  if (std::shared_ptr<Allocation> gone =
          memory_registry().remove(address, [](const Allocation&) { return true; })) {
    release_memory(*gone);
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
