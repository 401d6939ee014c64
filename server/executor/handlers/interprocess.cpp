// Handlers of memory and events that processes share: IPC handles, exported allocations, exported
// pools and pointers into them. The client gets names; the driver's handles stay in the workers
// (server/names/exported_names.h).
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "api/driver_table.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "common/cuda/return_if_error.h"
#include "server/executor/core/services.h"
#include "server/executor/host_memory/memory_origins.h"
#include "server/executor/host_memory/opened_memory.h"
#include "server/executor/metering/meters.h"
#include "server/executor/movable/movable_memory.h"
#include "server/names/exported_names.h"

namespace rcuda::server {
namespace {

using wire::ExportedName;
using wire::ExportKind;

// The content of a CUipcMemHandle, a CUipcEventHandle or a CUmemPoolPtrExportData.
template <typename Handle>
wire::HandleBytes bytes_in(const Handle& handle) {
  return std::bit_cast<wire::HandleBytes>(handle);
}

CUresult cannot_name(const Status& status) {
  RCUDA_WARN("cannot export memory or an event to other processes (CUDA IPC): %s",
             status.message().c_str());
  return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cannot_find(const Status& status, CUresult unknown) {
  RCUDA_INFO("cannot import memory or an event of another process (CUDA IPC): %s",
             status.message().c_str());
  return status.code() == Code::kNotFound ? unknown : CUDA_ERROR_OPERATING_SYSTEM;
}

// Replaces the driver's handle by a name.
template <typename Handle>
CUresult name_handle(ExportedNames& names, ExportKind kind, const ExportOrigin& origin,
                     Handle* handle) {
  const Result<ExportedName> name = names.add(kind, bytes_in(*handle), origin);
  if (!name) return cannot_name(name.status());
  *handle = std::bit_cast<Handle>(wire::to_handle(*name));
  return CUDA_SUCCESS;
}

// The driver's errors for bytes that are not a handle, and for a handle whose memory or event does
// not exist (any more).
struct Refusals {
  CUresult malformed = CUDA_ERROR_INVALID_VALUE;
  CUresult unknown = CUDA_ERROR_INVALID_VALUE;
};

// Replaces a name by the driver's handle.
template <typename Handle>
CUresult handle_of(ExportedNames& names, ExportKind kind, Refusals refusals, Handle* handle,
                   ExportOrigin* origin) {
  const std::optional<ExportedName> name = wire::name_in(bytes_in(*handle), kind);
  if (!name) return refusals.malformed;
  const Result<wire::HandleBytes> found = names.find_handle(*name, origin);
  if (!found) return cannot_find(found.status(), refusals.unknown);
  *handle = std::bit_cast<Handle>(*found);
  return CUDA_SUCCESS;
}

// Takes ownership of a descriptor that the driver made, and writes its name to `token`.
CUresult name_descriptor(ExportedNames& names, ExportKind kind, int descriptor, void* token,
                         const ExportOrigin& origin = {}, std::shared_ptr<const void> keeps = {}) {
  const Result<ExportedName> name = names.add(kind, UniqueFd(descriptor), origin, std::move(keeps));
  if (!name) return cannot_name(name.status());
  std::memcpy(token, &*name, sizeof *name);
  return CUDA_SUCCESS;
}

CUresult descriptor_of(ExportedNames& names, ExportKind kind, const void* token, size_t token_bytes,
                       UniqueFd* descriptor, ExportOrigin* origin) {
  ExportedName name;
  if (token_bytes != sizeof name) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&name, token, sizeof name);
  if (name.magic != ExportedName::kMagic || name.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  Result<UniqueFd> found = names.find_descriptor(name, origin);
  if (!found) return cannot_find(found.status(), CUDA_ERROR_INVALID_VALUE);
  *descriptor = std::move(found).value();
  return CUDA_SUCCESS;
}

void* as_handle(const UniqueFd& descriptor) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get()));
}

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Opens memory that another worker has exported with MovableMemory::export_allocation().
CUresult open_movable(InterprocessServices& services, const ExportedName& name,
                      CUdeviceptr* address) {
  ExportOrigin origin;
  CUdevice device = 0;
  // A driver returns this error if the process itself has exported the memory.
  if (services.movable.has_exported(name)) return CUDA_ERROR_INVALID_CONTEXT;
  Result<UniqueFd> descriptor = services.names.find_descriptor(name, &origin);
  if (!descriptor) return cannot_find(descriptor.status(), CUDA_ERROR_MAP_FAILED);
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.may_import(origin, &device));
  return services.opened.open(name.secret, std::move(descriptor).value(), origin, device, address);
}

}  // namespace

// ---- IPC handles -------------------------------------------------------------------------------

CUresult serve_cuIpcGetMemHandle(InterprocessServices& services, CUipcMemHandle* pHandle,
                                 CUdeviceptr dptr) {
  ExportOrigin origin;
  if (services.movable.is_allocation(dptr)) {
    RCUDA_RETURN_IF_CUDA_ERROR(services.origins.of_address(dptr, &origin));
    const Result<ExportedName> name = services.movable.export_allocation(dptr, origin);
    if (!name) return cannot_name(name.status());
    *pHandle = std::bit_cast<CUipcMemHandle>(wire::to_handle(*name));
    return CUDA_SUCCESS;
  }
  RCUDA_RETURN_IF_CUDA_ERROR(services.driver.cuIpcGetMemHandle(pHandle, dptr));
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.of_address(dptr, &origin));
  return name_handle(services.names, ExportKind::kMemory, origin, pHandle);
}

CUresult serve_cuIpcOpenMemHandle_v2(InterprocessServices& services, CUdeviceptr* pdptr,
                                     CUipcMemHandle handle, unsigned int Flags) {
  constexpr Refusals kRefusals{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED};
  ExportOrigin origin;
  if (const auto name = wire::name_in(bytes_in(handle), ExportKind::kMovable)) {
    return open_movable(services, *name, pdptr);
  }
  RCUDA_RETURN_IF_CUDA_ERROR(
      handle_of(services.names, ExportKind::kMemory, kRefusals, &handle, &origin));
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.may_import(origin));
  return services.driver.cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

CUresult serve_cuIpcCloseMemHandle(InterprocessServices& services, CUdeviceptr dptr) {
  return services.opened.has(dptr) ? services.opened.close(dptr)
                                   : services.driver.cuIpcCloseMemHandle(dptr);
}

CUresult serve_cuIpcGetEventHandle(InterprocessServices& services, CUipcEventHandle* pHandle,
                                   CUevent event) {
  RCUDA_RETURN_IF_CUDA_ERROR(services.driver.cuIpcGetEventHandle(pHandle, event));
  return name_handle(services.names, ExportKind::kEvent, {}, pHandle);
}

CUresult serve_cuIpcOpenEventHandle(InterprocessServices& services, CUevent* phEvent,
                                    CUipcEventHandle handle) {
  constexpr Refusals kRefusals{CUDA_ERROR_MAP_FAILED, CUDA_ERROR_MAP_FAILED};
  RCUDA_RETURN_IF_CUDA_ERROR(
      handle_of(services.names, ExportKind::kEvent, kRefusals, &handle, nullptr));
  return services.driver.cuIpcOpenEventHandle(phEvent, handle);
}

// ---- allocations and pools by descriptor -------------------------------------------------------

CUresult serve_rcuda_allocation_export(MemoryServices& services,
                                       CUmemGenericAllocationHandle handle, void* token,
                                       size_t token_bytes) {
  if (token_bytes != sizeof(ExportedName)) return CUDA_ERROR_INVALID_VALUE;
  ExportOrigin origin;
  int descriptor = -1;
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.of_allocation(handle, &origin));
  RCUDA_RETURN_IF_CUDA_ERROR(
      services.driver.cuMemExportToShareableHandle(&descriptor, handle, kDescriptor, 0));
  std::shared_ptr<const void> booking = services.meters.physical.describe(handle, &origin);
  return name_descriptor(services.names, ExportKind::kAllocation, descriptor, token, origin,
                         std::move(booking));
}

CUresult serve_rcuda_allocation_import(MemoryServices& services,
                                       CUmemGenericAllocationHandle* handle, const void* token,
                                       size_t token_bytes) {
  UniqueFd descriptor;
  ExportOrigin origin;
  CUdevice device = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(descriptor_of(services.names, ExportKind::kAllocation, token,
                                           token_bytes, &descriptor, &origin));
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.may_import(origin, &device));
  return services.meters.import_allocation(handle, as_handle(descriptor), origin, device);
}

CUresult serve_rcuda_pool_export(MemoryServices& services, CUmemoryPool pool, void* token,
                                 size_t token_bytes) {
  if (token_bytes != sizeof(ExportedName)) return CUDA_ERROR_INVALID_VALUE;
  int descriptor = -1;
  RCUDA_RETURN_IF_CUDA_ERROR(
      services.driver.cuMemPoolExportToShareableHandle(&descriptor, pool, kDescriptor, 0));
  return name_descriptor(services.names, ExportKind::kPool, descriptor, token);
}

// An imported pool alone gives no access to memory, so its origin is not checked. An exported
// pointer into the pool gives access, and its origin is checked.
CUresult serve_rcuda_pool_import(MemoryServices& services, CUmemoryPool* pool, const void* token,
                                 size_t token_bytes) {
  UniqueFd descriptor;
  RCUDA_RETURN_IF_CUDA_ERROR(
      descriptor_of(services.names, ExportKind::kPool, token, token_bytes, &descriptor, nullptr));
  return services.driver.cuMemPoolImportFromShareableHandle(pool, as_handle(descriptor),
                                                            kDescriptor, 0);
}

CUresult serve_cuMemPoolExportPointer(MemoryServices& services,
                                      CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  ExportOrigin origin;
  RCUDA_RETURN_IF_CUDA_ERROR(services.driver.cuMemPoolExportPointer(shareData_out, ptr));
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.of_address(ptr, &origin));
  return name_handle(services.names, ExportKind::kPoolPointer, origin, shareData_out);
}

CUresult serve_rcuda_pool_import_pointer(MemoryServices& services, CUdeviceptr* address,
                                         size_t* bytes, CUmemoryPool pool,
                                         const CUmemPoolPtrExportData* data) {
  const api::DriverTable& driver = services.driver;
  CUmemPoolPtrExportData given = *data;
  ExportOrigin origin;
  RCUDA_RETURN_IF_CUDA_ERROR(
      handle_of(services.names, ExportKind::kPoolPointer, {}, &given, &origin));
  RCUDA_RETURN_IF_CUDA_ERROR(services.origins.may_import(origin));
  RCUDA_RETURN_IF_CUDA_ERROR(driver.cuMemPoolImportPointer(address, pool, &given));
  CUdeviceptr base = 0;
  const CUresult result = driver.cuMemGetAddressRange_v2(&base, bytes, *address);
  if (result != CUDA_SUCCESS) driver.cuMemFree_v2(*address);
  return result;
}

CUresult serve_rcuda_allocation_unexport(MemoryServices& services, CUdevice, const void* token,
                                         size_t token_bytes) {
  ExportedName name;
  if (token_bytes != sizeof name) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&name, token, sizeof name);
  return services.names.remove(name) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace rcuda::server
