// Handlers of memory: client memory that the GPUs can reach, memory of pools, and exported
// allocations.
#include <cstring>
#include <utility>

#include "api/server_commands.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "server/executor/custom.h"
#include "server/executor/memory/host_memory.h"
#include "server/executor/memory/mirrors.h"
#include "server/executor/memory/shared_allocations.h"
#include "server/executor/streams/pool_frees.h"

namespace rcuda::server {

HandlerResult host_expose(MemoryServices& services, const Command&,
                          const wire::HostExposeBody& body) {
  return {services.host_memory.expose(body), false, false};
}

HandlerResult host_unexpose(MemoryServices& services, const Command&,
                            const wire::HostUnexposeBody& body) {
  return {services.host_memory.unexpose(body), false, false};
}

HandlerResult mirror(MemoryServices& services, const Command&, const wire::MirrorBody& body) {
  return {services.mirrors.add(body), false, false};
}

HandlerResult unmirror(MemoryServices& services, const Command&,
                       const wire::MirrorFetchBody& body) {
  return {services.mirrors.remove(body.address), false, false};
}

HandlerResult mirror_fetch(MemoryServices& services, const Command& command,
                           const wire::MirrorFetchBody& body) {
  return services.mirrors.fetch(body.address, command.target);
}

// ---- memory of pools ---------------------------------------------------------------------------

CUresult serve_cuMemFreeAsync(MemoryServices& services, CUdeviceptr dptr, CUstream hStream) {
  const auto free = services.driver.cuMemFreeAsync;
  if (free == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  services.pool_frees.note();
  return free(dptr, hStream);
}

CUresult serve_cuMemPoolTrimTo(MemoryServices& services, CUmemoryPool pool, size_t minBytesToKeep) {
  const auto trim = services.driver.cuMemPoolTrimTo;
  if (trim == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  services.pool_frees.reached_all();
  return trim(pool, minBytesToKeep);
}

// ---- exported allocations ----------------------------------------------------------------------

namespace {

CUresult keep(MemoryServices& services, UniqueFd descriptor, void* token) {
  Result<wire::AllocationToken> made = services.shared_allocations.add(std::move(descriptor));
  if (!made) {
    RCUDA_WARN("memory could not be exported: %s", made.status().message().c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memcpy(token, &*made, sizeof *made);
  return CUDA_SUCCESS;
}

// The descriptor that the token names; invalid if it cannot be imported.
UniqueFd named_by(MemoryServices& services, const void* token) {
  wire::AllocationToken named;
  std::memcpy(&named, token, sizeof named);
  Result<UniqueFd> descriptor = services.shared_allocations.import_descriptor(named);
  if (descriptor) return std::move(*descriptor);
  RCUDA_INFO("memory could not be imported: %s", descriptor.status().message().c_str());
  return {};
}

void* as_handle(const UniqueFd& descriptor) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(descriptor.get()));
}

}  // namespace

CUresult serve_rcuda_allocation_export(MemoryServices& services,
                                       CUmemGenericAllocationHandle handle, void* token,
                                       size_t token_bytes) {
  const auto export_handle = services.driver.cuMemExportToShareableHandle;
  if (export_handle == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (token_bytes != sizeof(wire::AllocationToken)) return CUDA_ERROR_INVALID_VALUE;
  int descriptor = -1;
  const CUresult result =
      export_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? keep(services, UniqueFd(descriptor), token) : result;
}

CUresult serve_rcuda_allocation_import(MemoryServices& services,
                                       CUmemGenericAllocationHandle* handle, const void* token,
                                       size_t token_bytes) {
  const auto import_handle = services.driver.cuMemImportFromShareableHandle;
  if (import_handle == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (token_bytes != sizeof(wire::AllocationToken)) return CUDA_ERROR_INVALID_VALUE;
  const UniqueFd descriptor = named_by(services, token);
  return descriptor ? import_handle(handle, as_handle(descriptor),
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
                    : CUDA_ERROR_INVALID_VALUE;
}

CUresult serve_rcuda_pool_export(MemoryServices& services, CUmemoryPool pool, void* token,
                                 size_t token_bytes) {
  const auto export_pool = services.driver.cuMemPoolExportToShareableHandle;
  if (export_pool == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (token_bytes != sizeof(wire::AllocationToken)) return CUDA_ERROR_INVALID_VALUE;
  int descriptor = -1;
  const CUresult result =
      export_pool(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return result == CUDA_SUCCESS ? keep(services, UniqueFd(descriptor), token) : result;
}

CUresult serve_rcuda_pool_import(MemoryServices& services, CUmemoryPool* pool, const void* token,
                                 size_t token_bytes) {
  const auto import_pool = services.driver.cuMemPoolImportFromShareableHandle;
  if (import_pool == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (token_bytes != sizeof(wire::AllocationToken)) return CUDA_ERROR_INVALID_VALUE;
  const UniqueFd descriptor = named_by(services, token);
  return descriptor
             ? import_pool(pool, as_handle(descriptor), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult serve_rcuda_pool_import_pointer(MemoryServices& services, CUdeviceptr* address,
                                         size_t* bytes, CUmemoryPool pool,
                                         const CUmemPoolPtrExportData* data) {
  const api::DriverTable& driver = services.driver;
  if (!driver.cuMemPoolImportPointer) return CUDA_ERROR_NOT_SUPPORTED;
  CUmemPoolPtrExportData given = *data;
  CUresult result = driver.cuMemPoolImportPointer(address, pool, &given);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr base = 0;
  result = driver.cuMemGetAddressRange_v2(&base, bytes, *address);
  if (result != CUDA_SUCCESS) driver.cuMemFree_v2(*address);
  return result;
}

CUresult serve_rcuda_allocation_unexport(MemoryServices& services, CUdevice, const void* token,
                                         size_t token_bytes) {
  wire::AllocationToken named;
  if (token_bytes != sizeof named) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&named, token, sizeof named);
  return services.shared_allocations.remove(named) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult serve_rcuda_allocation_release(MemoryServices& services,
                                        CUmemGenericAllocationHandle handle) {
  return services.driver.cuMemRelease ? services.driver.cuMemRelease(handle)
                                      : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace rcuda::server
