#include "server/executor/movable/movable_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/objects/context_guard.h"
#include "server/executor/streams/capture.h"

namespace rcuda::server {
namespace {

// The granularity of physical memory, and the smallest size of an allocation that can move.
constexpr uint64_t kUnit = 2u << 20;
// The first handle that the program can get. The driver's handles are addresses, so they are
// smaller.
constexpr CUmemGenericAllocationHandle kFirstHandle = 0xf000'0000'0000'0000;

int attribute(const api::DriverTable& driver, CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

bool can_map(const api::DriverTable& driver, CUdevice device) {
  return attribute(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) &&
         attribute(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
}

bool reach_each_other(const api::DriverTable& driver, const std::vector<SessionDevice>& devices) {
  for (const SessionDevice& one : devices) {
    for (const SessionDevice& other : devices) {
      int can = one.device == other.device;
      if (!can &&
          (driver.cuDeviceCanAccessPeer(&can, one.device, other.device) != CUDA_SUCCESS || !can)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

MovableMemory::Physical::~Physical() {
  if (handle) driver.cuMemRelease(handle);
}

MovableMemory::MovableMemory(const api::DriverTable& plain, ExportedNames& names,
                             const std::vector<SessionDevice>& devices, bool moves)
    : driver(plain), names_(names), next_handle_(kFirstHandle), copy_(plain) {
  if (!moves) return;
  const bool can = std::ranges::all_of(
      devices, [&](const SessionDevice& device) { return can_map(plain, device.device); });
  if (!can || !reach_each_other(plain, devices)) {
    RCUDA_WARN(
        "movable_memory has no effect for this session, so only the driver can park its GPU "
        "memory: the session's GPUs lack virtual memory management or access to each other");
    return;
  }
  for (const SessionDevice& device : devices) {
    Device made{device.device, {}, -1};
    (void)plain.cuDeviceGetAttribute(&made.node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device.device);
    made.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device.device}};
    made.properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    made.properties.allocFlags.gpuDirectRDMACapable = static_cast<unsigned char>(attribute(
        plain, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device.device));
    access_.push_back({made.properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    devices_.push_back(made);
  }
  moving_.emplace(plain, *this);
  move_memory(*moving_);
}

MovableMemory::~MovableMemory() = default;

const MovableMemory::Device* MovableMemory::find_device(CUdevice device) const {
  const auto found = std::ranges::find(devices_, device, &Device::device);
  return found == devices_.end() ? nullptr : &*found;
}

CUcontext MovableMemory::owner_of(CUcontext context) const {
  const auto is_it = [&](const auto& green) { return green.second == context; };
  if (std::ranges::none_of(greens, is_it)) return context;
  CUdevice device = 0;
  const ContextGuard inside(driver, context);
  (void)driver.cuCtxGetDevice(&device);
  return primary_context(driver, device);
}

// ---- memory of cuMemAlloc ----------------------------------------------------------------------

// Creates physical memory and maps it to a reservation.
CUresult MovableMemory::back(CUdeviceptr address, uint64_t bytes, const Device& on,
                             Mapping* mapping) {
  std::shared_ptr<Physical> physical(new Physical{driver, 0, on.properties, bytes});
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemCreate(&physical->handle, bytes, &on.properties, 0));
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemMap(address, bytes, 0, physical->handle, 0));
  const CUresult result = driver.cuMemSetAccess(address, bytes, access_.data(), access_.size());
  if (result != CUDA_SUCCESS) {
    driver.cuMemUnmap(address, bytes);
    return result;
  }
  mapping->physical = std::move(physical);
  mapping->bytes = bytes;
  mapping->access = access_;
  return CUDA_SUCCESS;
}

CUresult MovableMemory::allocate(CUdeviceptr* address, size_t bytes) {
  end_freed();
  CUdevice device = 0;
  Mapping mapping;
  mapping.requested = bytes;
  const bool is_current = driver.cuCtxGetCurrent(&mapping.owner) == CUDA_SUCCESS && mapping.owner &&
                          driver.cuCtxGetDevice(&device) == CUDA_SUCCESS;
  const Device* const on = is_current ? find_device(device) : nullptr;
  if (!on || bytes < kUnit || bytes > UINT64_MAX - kUnit) {
    return driver.cuMemAlloc_v2(address, bytes);
  }
  mapping.owner = owner_of(mapping.owner);
  const uint64_t whole = (bytes + kUnit - 1) / kUnit * kUnit;
  CUdeviceptr reserved = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemAddressReserve(&reserved, whole, 0, 0, 0));
  const CUresult result = back(reserved, whole, *on, &mapping);
  if (result != CUDA_SUCCESS) {
    driver.cuMemAddressFree(reserved, whole);
    return result;
  }
  mappings_[reserved] = std::move(mapping);
  *address = reserved;
  return CUDA_SUCCESS;
}

void MovableMemory::end(Mappings::iterator allocation) {
  const CUdeviceptr address = allocation->first;
  const uint64_t bytes = allocation->second.bytes;
  driver.cuMemUnmap(address, bytes);
  mappings_.erase(allocation);
  driver.cuMemAddressFree(address, bytes);
}

// cuCtxSynchronize invalidates all captures of the context's streams. So after the first capture,
// this function frees a small allocation instead: cuMemFree waits for the same work, and
// invalidates only captures whose mode forbids cuMemFree to this thread.
CUresult MovableMemory::wait_for_work() {
  CUdeviceptr small = 0;
  const CUresult result = has_captured ? driver.cuMemAlloc_v2(&small, 1) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return driver.cuCtxSynchronize();
  return result == CUDA_SUCCESS ? driver.cuMemFree_v2(small) : result;
}

// cuMemUnmap does not wait for work that uses the memory, so this function waits for it, as
// cuMemFree does.
CUresult MovableMemory::free(CUdeviceptr address) {
  end_freed();
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || !found->second.owner) return driver.cuMemFree_v2(address);
  if (found->second.is_freed) return CUDA_ERROR_INVALID_VALUE;
  CUcontext current = nullptr;
  (void)driver.cuCtxGetCurrent(&current);
  if (current) RCUDA_RETURN_IF_CUDA_ERROR(wait_for_work());
  if (found->second.owner != current) {
    const ContextGuard inside(driver, found->second.owner);
    if (inside.ok()) RCUDA_RETURN_IF_CUDA_ERROR(wait_for_work());
  }
  end(found);
  return CUDA_SUCCESS;
}

CUresult MovableMemory::free_in_order(CUdeviceptr address, CUstream stream) {
  const auto found = mappings_.find(address);
  const bool is_ours = found != mappings_.end() && found->second.owner;
  // In a capture, the driver refuses this address, as it would refuse memory of its own cuMemAlloc.
  if (!is_ours || captured_into(driver, stream)) return driver.cuMemFreeAsync(address, stream);
  if (found->second.is_freed) return CUDA_ERROR_INVALID_VALUE;
  Free made{.address = address};
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuStreamGetCtx(stream, &made.context));
  const ContextGuard inside(driver, made.context);
  if (!inside.ok()) return inside.result();
  made.context = owner_of(made.context);
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuEventCreate(&made.event, CU_EVENT_DISABLE_TIMING));
  const CUresult result = driver.cuEventRecord(made.event, stream);
  if (result != CUDA_SUCCESS) {
    driver.cuEventDestroy_v2(made.event);
    return result;
  }
  found->second.is_freed = true;
  freed_.push_back(made);
  return CUDA_SUCCESS;
}

void MovableMemory::end_freed() {
  std::erase_if(freed_, [this](const Free& one) {
    if (driver.cuEventQuery(one.event) == CUDA_ERROR_NOT_READY) return false;
    driver.cuEventDestroy_v2(one.event);
    end(mappings_.find(one.address));
    return true;
  });
}

void MovableMemory::end_context(CUcontext context) {
  std::erase_if(freed_, [&](const Free& one) {
    const auto memory = mappings_.find(one.address);
    const bool ends_below = memory->second.owner == context;  // the loop below ends this memory
    // The event ended with its context, after the work of the context's streams.
    const bool has_ended = one.context == context;
    if (ends_below && !has_ended) driver.cuEventDestroy_v2(one.event);
    if (has_ended && !ends_below) end(memory);
    return has_ended || ends_below;
  });
  for (auto mapping = mappings_.begin(); mapping != mappings_.end();) {
    const auto next = std::next(mapping);
    if (mapping->second.owner == context) end(mapping);
    mapping = next;
  }
}

Result<wire::ExportedName> MovableMemory::export_allocation(CUdeviceptr address,
                                                            ExportOrigin origin) {
  const auto after = mappings_.upper_bound(address);
  if (!is_allocation(address))
    return Status(Code::kNotFound, "the address is not in movable memory");
  Mapping& mapping = std::prev(after)->second;
  if (mapping.exported) return mapping.exported->name;
  int file = -1;
  const CUresult result = driver.cuMemExportToShareableHandle(
      &file, mapping.physical->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return Status::from_cuda(result, "cuMemExportToShareableHandle");
  mapping.physical->stays = true;
  origin.bytes = mapping.bytes;
  RCUDA_ASSIGN_OR_RETURN(const wire::ExportedName name,
                         names_.add(wire::ExportKind::kMovable, UniqueFd(file), origin));
  mapping.exported.reset(new Export{names_, name});
  return name;
}

bool MovableMemory::has_exported(const wire::ExportedName& name) const {
  return std::ranges::any_of(mappings_, [&](const auto& entry) {
    const auto& exported = entry.second.exported;
    return exported && exported->name.secret == name.secret;
  });
}

// ---- memory of cuMemCreate ---------------------------------------------------------------------

const MovableMemory::Mappings::value_type* MovableMemory::find(CUdeviceptr address) const {
  const auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return nullptr;
  const Mappings::value_type& before = *std::prev(after);
  return address - before.first < before.second.bytes ? &before : nullptr;
}

bool MovableMemory::is_allocation(CUdeviceptr address) const {
  const auto* const found = find(address);
  return found && found->second.owner;
}

std::shared_ptr<MovableMemory::Physical> MovableMemory::find_handle(
    CUmemGenericAllocationHandle handle) const {
  const auto found = handles_.find(handle);
  return found == handles_.end() ? nullptr : found->second.physical;
}

CUmemGenericAllocationHandle MovableMemory::add_handle(std::shared_ptr<Physical> physical) {
  if (physical->number == 0) physical->number = next_handle_++;
  Handle& handle = handles_[physical->number];
  ++handle.references;
  handle.physical = std::move(physical);
  return handle.physical->number;
}

bool MovableMemory::release_handle(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) return false;
  if (--found->second.references > 0) return true;
  found->second.physical->number = 0;
  handles_.erase(found);
  return true;
}

CUresult MovableMemory::map(CUdeviceptr address, uint64_t bytes, uint64_t offset,
                            CUmemGenericAllocationHandle handle, unsigned long long flags) {
  auto known = find_handle(handle);
  const CUresult result =
      driver.cuMemMap(address, bytes, offset, known ? known->handle : handle, flags);
  if (result == CUDA_SUCCESS && known) {
    mappings_[address] = {.physical = std::move(known), .bytes = bytes};
  }
  return result;
}

CUresult MovableMemory::unmap(CUdeviceptr address, uint64_t bytes) {
  if (is_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemUnmap(address, bytes));
  const auto begin = mappings_.lower_bound(address);
  auto end = begin;
  while (end != mappings_.end() && end->first - address < bytes) ++end;
  mappings_.erase(begin, end);
  return CUDA_SUCCESS;
}

CUresult MovableMemory::set_access(CUdeviceptr address, uint64_t bytes, const CUmemAccessDesc* list,
                                   size_t count) {
  if (is_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemSetAccess(address, bytes, list, count));
  for (auto at = mappings_.lower_bound(address);
       at != mappings_.end() && at->first - address < bytes; ++at) {
    std::vector<CUmemAccessDesc>& known = at->second.access;
    for (size_t i = 0; i < count; ++i) {
      std::erase_if(known, [&](const CUmemAccessDesc& one) {
        return one.location.type == list[i].location.type && one.location.id == list[i].location.id;
      });
      known.push_back(list[i]);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace rcuda::server
