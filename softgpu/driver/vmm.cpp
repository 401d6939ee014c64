#include "softgpu/driver/vmm.h"

#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/shared_file.h"

namespace softgpu::driver {
namespace {

struct Vmm {
  std::mutex mutex;
  std::map<uint64_t, size_t> reservations;
  std::map<const void*, std::shared_ptr<PhysicalMemory>> handles;
};

Vmm& vmm() {
  static auto* instance = new Vmm;
  return *instance;
}

void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

std::shared_ptr<Arena> host_arena() {
  static auto* arena = new std::shared_ptr<Arena>(std::make_shared<Arena>("softgpu-host"));
  return *arena;
}

// The reservation that contains [address, address + bytes), or end().
std::map<uint64_t, size_t>::iterator reservation_locked(Vmm& state, uint64_t address,
                                                        size_t bytes) {
  auto it = state.reservations.upper_bound(address);
  if (it == state.reservations.begin()) return state.reservations.end();
  --it;
  const uint64_t end = it->first + it->second;
  if (address > end || bytes > end - address) return state.reservations.end();
  return it;
}

// Reserves inaccessible pages: at `hint` if it is free, otherwise at an address that the kernel
// chooses.
uint64_t reserve_pages(size_t bytes, size_t align, uint64_t hint) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && hint % align == 0) {
    // Without MAP_FIXED the kernel uses the hint if it is free, and never replaces a mapping.
    void* got = ::mmap(at(hint), bytes, PROT_NONE, kFlags, -1, 0);
    if (got == at(hint)) return hint;
    if (got != MAP_FAILED) ::munmap(got, bytes);
  }
  size_t padded = 0;
  if (__builtin_add_overflow(bytes, align, &padded)) return 0;
  void* got = ::mmap(nullptr, padded, PROT_NONE, kFlags, -1, 0);
  if (got == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<uint64_t>(got);
  const uint64_t aligned = round_up(begin, align);
  if (aligned > begin) ::munmap(got, aligned - begin);
  const uint64_t tail = begin + padded - (aligned + bytes);
  if (tail > 0) ::munmap(at(aligned + bytes), tail);
  return aligned;
}

// The mappings that together cover exactly [address, address + bytes). False if a part is not
// mapped or a mapping extends beyond the range.
bool mappings_of(uint64_t address, size_t bytes,
                 std::vector<std::shared_ptr<Allocation>>* mappings) {
  uint64_t end = 0;
  if (__builtin_add_overflow(address, bytes, &end)) return false;
  while (address < end) {
    std::shared_ptr<Allocation> mapping = memory_registry().find_base(address);
    if (!mapping || mapping->kind != MemoryKind::kMapped || mapping->end() > end) return false;
    address = mapping->end();
    mappings->push_back(std::move(mapping));
  }
  return true;
}

CUresult check_location(const CUmemLocation& location, Device** device) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      *device = device_at(location.id);
      return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      *device = nullptr;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult check_properties(const CUmemAllocationProp* properties, Device** device) {
  if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (properties->allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // NVIDIA's driver ignores handle types that it does not know.
  constexpr unsigned kAbsent =
      CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC;
  if (properties->requestedHandleTypes & kAbsent) return CUDA_ERROR_NOT_SUPPORTED;
  return check_location(properties->location, device);
}

CUmemGenericAllocationHandle handle_of(const PhysicalMemory& memory) {
  return reinterpret_cast<CUmemGenericAllocationHandle>(&memory);
}

// Adds a reference of the application.
CUmemGenericAllocationHandle retain_locked(Vmm& state, std::shared_ptr<PhysicalMemory> memory) {
  ++memory->handles;
  const CUmemGenericAllocationHandle handle = handle_of(*memory);
  const void* key = memory.get();
  state.handles.insert_or_assign(key, std::move(memory));
  return handle;
}

std::shared_ptr<PhysicalMemory> find_locked(Vmm& state, CUmemGenericAllocationHandle handle) {
  auto it = state.handles.find(reinterpret_cast<const void*>(handle));
  return it == state.handles.end() ? nullptr : it->second;
}

CUresult back(PhysicalMemory* memory) {
  if (memory->device) {
    const std::string& no_room = configuration().no_room;
    if (!no_room.empty() && ::access(no_room.c_str(), F_OK) == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!memory->device->charge(memory->bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->charged = true;
  }
  if (memory->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    SharedFileHeader header;
    header.kind = SharedFileKind::kPhysicalMemory;
    header.location_type = static_cast<int32_t>(memory->properties.location.type);
    if (memory->device) header.device = memory->device->uuid();
    header.bytes = memory->bytes;
    const std::string name =
        memory->device ? device_file_name(memory->device->number()) : "softgpu-exportable";
    memory->own_file = make_shared_file(name.c_str(), header);
    struct stat status {};
    if (!memory->own_file || ::fstat(memory->own_file.get(), &status) != 0) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->inode = status.st_ino;
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Arena> arena = memory->device ? device_arena(*memory->device) : host_arena();
  std::optional<uint64_t> offset = arena->take_pages(memory->bytes);
  if (!offset) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->arena = std::move(arena);
  memory->file_offset = *offset;
  return CUDA_SUCCESS;
}

}  // namespace

PhysicalMemory::~PhysicalMemory() {
  if (arena) arena->give_back_pages(file_offset, bytes);
  if (charged) device->refund(bytes);
}

std::shared_ptr<PhysicalMemory> find_physical(CUmemGenericAllocationHandle handle) {
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  return find_locked(state, handle);
}

bool find_reservation(CUdeviceptr address, CUdeviceptr* base, size_t* bytes) {
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  auto it = reservation_locked(state, address, 1);
  if (it == state.reservations.end()) return false;
  *base = it->first;
  *bytes = it->second;
  return true;
}

}  // namespace softgpu::driver

using namespace softgpu::driver;

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity,
                                               const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags option) {
  if (CUresult result = check_initialized()) return result;
  if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!properties) return CUDA_ERROR_INVALID_VALUE;  // its members are not checked
  *granularity = kPhysicalGranularity;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t align,
                                     CUdeviceptr hint, unsigned long long flags) {
  if (CUresult result = check_initialized()) return result;
  if (!address || bytes == 0 || bytes % kPhysicalGranularity != 0 || flags != 0 ||
      (align != 0 && !std::has_single_bit(align))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  align = std::max(align, kPhysicalGranularity);
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  const uint64_t reserved = reserve_pages(bytes, align, hint);
  if (reserved == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  state.reservations.emplace(reserved, bytes);
  *address = reserved;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  if (CUresult result = check_initialized()) return result;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  auto it = state.reservations.find(address);
  if (it == state.reservations.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (memory_registry().overlaps(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(at(address), bytes);
  state.reservations.erase(it);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                             const CUmemAllocationProp* properties, unsigned long long flags) {
  if (CUresult result = check_initialized()) return result;
  Device* device = nullptr;
  if (CUresult result = check_properties(properties, &device)) return result;
  if (!handle || bytes == 0 || bytes % kPhysicalGranularity != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto memory = std::make_shared<PhysicalMemory>();
  memory->device = device;
  memory->properties = *properties;
  memory->bytes = bytes;
  memory->id = next_memory_id();
  if (CUresult result = back(memory.get())) return result;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  *handle = retain_locked(state, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (CUresult result = check_initialized()) return result;
  Vmm& state = vmm();
  std::shared_ptr<PhysicalMemory> memory;  // destroyed after the lock is released
  std::lock_guard lock(state.mutex);
  memory = find_locked(state, handle);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  if (--memory->handles == 0) state.handles.erase(memory.get());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Allocation> mapping = memory_registry().find(reinterpret_cast<uint64_t>(address));
  if (!mapping || mapping->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  *handle = retain_locked(state, mapping->physical);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) {
  if (CUresult result = check_initialized()) return result;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  std::shared_ptr<PhysicalMemory> memory = find_locked(state, handle);
  if (!memory || !properties) return CUDA_ERROR_INVALID_VALUE;
  *properties = memory->properties;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (CUresult result = check_initialized()) return result;
  if (bytes == 0 || address % kPhysicalGranularity != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  std::shared_ptr<PhysicalMemory> memory = find_locked(state, handle);
  if (!memory || reservation_locked(state, address, bytes) == state.reservations.end() ||
      memory_registry().overlaps(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // NVIDIA documents that the offset must be zero.
  if (offset != 0 || bytes % kPhysicalGranularity != 0 || bytes > memory->bytes) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (::mmap(at(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
             memory->file(), static_cast<off_t>(memory->file_offset)) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto mapping = std::make_shared<Allocation>();
  mapping->address = address;
  mapping->bytes = bytes;
  mapping->kind = MemoryKind::kMapped;
  mapping->device = memory->device;
  mapping->id = next_memory_id();
  mapping->physical = std::move(memory);
  memory_registry().add(std::move(mapping));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes) {
  if (CUresult result = check_initialized()) return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  // Waits for work that still uses the pages: a queued copy of unmapped pages would crash this
  // process.
  if (Context* context = current_context(); context && context->alive()) context->synchronize();
  Vmm& state = vmm();
  std::vector<std::shared_ptr<Allocation>> mappings;  // destroyed after the lock is released
  std::lock_guard lock(state.mutex);
  if (!mappings_of(address, bytes, &mappings)) {
    // Unmapping reserved addresses without a mapping is not an error.
    const bool reserved = reservation_locked(state, address, bytes) != state.reservations.end();
    return reserved && !memory_registry().overlaps(address, bytes) ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
  }
  for (const std::shared_ptr<Allocation>& mapping : mappings) {
    memory_registry().remove(mapping->address, [](const Allocation&) { return true; });
    wait_for_holds(*mapping);
  }
  ::mmap(at(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* list,
                                size_t count) {
  if (CUresult result = check_initialized()) return result;
  if (bytes == 0 || !list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  std::vector<std::shared_ptr<Allocation>> mappings;
  if (!mappings_of(address, bytes, &mappings)) return CUDA_ERROR_INVALID_VALUE;
  uint32_t readable = 0, writable = 0, named = 0;
  for (size_t i = 0; i < count; ++i) {
    Device* device = nullptr;
    if (check_location(list[i].location, &device)) return CUDA_ERROR_INVALID_VALUE;
    if (list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device) {
      // The host can reach host memory only.
      for (const std::shared_ptr<Allocation>& mapping : mappings) {
        if (!mapping->on_host()) return CUDA_ERROR_NOT_SUPPORTED;
      }
      continue;
    }
    const uint32_t bit = 1u << device->ordinal();
    named |= bit;
    if (list[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) readable |= bit;
    if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) writable |= bit;
  }
  for (const std::shared_ptr<Allocation>& mapping : mappings) {
    memory_registry().set_access(mapping, (mapping->readable & ~named) | readable,
                                 (mapping->writable & ~named) | writable);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                CUdeviceptr address) {
  if (CUresult result = check_initialized()) return result;
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  Device* device = nullptr;
  if (CUresult result = check_location(*location, &device)) return result;
  std::shared_ptr<Allocation> mapping = memory_registry().find(address);
  if (!mapping || mapping->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  if (!device) {
    *flags =
        mapping->on_host() ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  const uint32_t bit = 1u << device->ordinal();
  *flags = mapping->writable & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : mapping->readable & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type,
                                              unsigned long long flags) {
  if (CUresult result = check_initialized()) return result;
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  std::shared_ptr<PhysicalMemory> memory = find_locked(state, handle);
  if (!memory || !(memory->properties.requestedHandleTypes & type)) return CUDA_ERROR_INVALID_VALUE;
  const int copy = ::fcntl(memory->own_file.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  memory->exported = true;
  *static_cast<int*>(shareable) = copy;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* shareable, CUmemAllocationHandleType type) {
  if (CUresult result = check_initialized()) return result;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto file = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  SharedFileHeader header;
  if (!read_shared_file(file, &header) || header.kind != SharedFileKind::kPhysicalMemory) {
    return CUDA_ERROR_UNKNOWN;  // driver 580 returns this for a descriptor that is not its own
  }
  auto memory = std::make_shared<PhysicalMemory>();
  memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory->properties.location.type = static_cast<CUmemLocationType>(header.location_type);
  if (header.location_type == CU_MEM_LOCATION_TYPE_DEVICE) {
    memory->device = device_with_uuid(header.device);
    if (!memory->device) return CUDA_ERROR_INVALID_DEVICE;
    memory->properties.location.id = memory->device->ordinal();
  }
  memory->bytes = header.bytes;
  memory->id = next_memory_id();
  memory->own_file.reset(::fcntl(file, F_DUPFD_CLOEXEC, 0));
  if (!memory->own_file) return CUDA_ERROR_OPERATING_SYSTEM;
  Vmm& state = vmm();
  std::lock_guard lock(state.mutex);
  *handle = retain_locked(state, std::move(memory));
  return CUDA_SUCCESS;
}

}  // extern "C"
