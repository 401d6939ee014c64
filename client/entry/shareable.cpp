// Allocations and pools that are shared by POSIX file descriptor, and the reference counts of
// allocation handles.
//
// The memory is on a server. So the application's descriptor, which it passes on and closes, is a
// socket that contains a token. An import reads the token and leaves it in the socket, so any
// process whose device is on the same server host can import the memory, any number of times. This
// library keeps the other end of the socket, which shows when the last duplicate of the
// application's descriptor is closed. The next call of forget_closed() then makes the worker end
// the export.

#include <cstring>
#include <utility>
#include <vector>

#include <cuda.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/code/refused_import.h"
#include "client/objects/allocation.h"
#include "client/objects/arena.h"
#include "client/process/process.h"
#include "client/process/worker_memory.h"
#include "client/route/find_route.h"
#include "client/session/session.h"
#include "common/base/mutex.h"
#include "common/base/unique_fd.h"
#include "common/cuda/return_if_error.h"
#include "common/wire/exported_name.h"
#include "generated/client/forward.h"

namespace rcuda::client {
namespace {

struct Exported {
  UniqueFd end;
  wire::ExportedName token;
  CUdevice device = 0;  // the device whose worker exported it
};

rcuda::Mutex exported_mutex;
std::vector<Exported>& exported() RCUDA_REQUIRES(exported_mutex) {
  static auto* instance = new std::vector<Exported>;
  return *instance;
}

// Ends the exports whose descriptors are all closed. Called when memory or a pool is exported, and
// when an allocation is imported or released.
void forget_closed() {
  std::vector<Exported> closed;
  {
    rcuda::MutexLock lock(exported_mutex);
    std::vector<Exported>& all = exported();
    for (size_t i = 0; i < all.size();) {
      pollfd item{all[i].end.get(), 0, 0};
      if (poll(&item, 1, 0) == 1 && (item.revents & POLLHUP)) {
        closed.push_back(std::move(all[i]));
        all[i] = std::move(all.back());
        all.pop_back();
      } else {
        ++i;
      }
    }
  }
  for (const Exported& old : closed) {
    (void)forward_rcuda_allocation_unexport(old.device, &old.token, sizeof old.token);
  }
}

// Makes a descriptor for the export that the worker keeps under the token. On error, the worker
// releases the export.
CUresult share(Exported made, void* shareable) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    (void)forward_rcuda_allocation_unexport(made.device, &made.token, sizeof made.token);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  made.end.reset(ends[0]);
  UniqueFd given(ends[1]);
  if (!given || send(made.end.get(), &made.token, sizeof made.token, MSG_NOSIGNAL) !=
                    static_cast<ssize_t>(sizeof made.token)) {
    (void)forward_rcuda_allocation_unexport(made.device, &made.token, sizeof made.token);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const int descriptor = given.release();
  std::memcpy(shareable, &descriptor, sizeof descriptor);
  rcuda::MutexLock lock(exported_mutex);
  exported().push_back(std::move(made));
  return CUDA_SUCCESS;
}

// Reads the token from a descriptor of share(). The token stays in the socket.
bool read_token(void* shareable, wire::ExportedName* token) {
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  return recv(descriptor, token, sizeof *token, MSG_PEEK | MSG_DONTWAIT) ==
             static_cast<ssize_t>(sizeof *token) &&
         token->magic == wire::ExportedName::kMagic;
}

// Returns the error for a handle type that rcuda does not export.
CUresult error_of_type(CUmemAllocationHandleType type) {
  return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

AllocationHandle* find_allocation(CUmemGenericAllocationHandle handle) {
  return find<AllocationHandle>(reinterpret_cast<const void*>(handle));
}

}  // namespace
}  // namespace rcuda::client

using namespace rcuda::client;  // NOLINT: entry points live outside every namespace
namespace wire = rcuda::wire;

extern "C" {

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto* allocation = find_allocation(handle);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return error_of_type(type);
  forget_closed();
  Exported made;
  made.device = static_cast<CUdevice>(allocation->device);
  RCUDA_RETURN_IF_CUDA_ERROR(
      forward_rcuda_allocation_export(handle, &made.token, sizeof made.token));
  return share(std::move(made), shareable);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return error_of_type(type);
  wire::ExportedName token;
  if (!read_token(shareable, &token)) return CUDA_ERROR_UNKNOWN;
  forget_closed();
  return explain_import(forward_rcuda_allocation_import(handle, &token, sizeof token));
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* exported_pool = find<MemoryPool>(pool);
  if (!shareable || flags != 0 || !exported_pool) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  forget_closed();
  Exported made;
  made.device = static_cast<CUdevice>(exported_pool->device);
  RCUDA_RETURN_IF_CUDA_ERROR(forward_rcuda_pool_export(pool, &made.token, sizeof made.token));
  return share(std::move(made), shareable);
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  wire::ExportedName token;
  if (!pool || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!read_token(shareable, &token)) return CUDA_ERROR_UNKNOWN;
  return explain_import(forward_rcuda_pool_import(pool, &token, sizeof token));
}

CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool,
                                CUmemPoolPtrExportData* data) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  const auto* imported = find<MemoryPool>(pool);
  if (!address || !data || !imported) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation;
  CUdeviceptr found = 0;
  RCUDA_RETURN_IF_CUDA_ERROR(
      explain_import(forward_rcuda_pool_import_pointer(&found, &allocation.bytes, pool, data)));
  allocation.base = found;
  allocation.pool = pool;
  allocation.placement = Placement::kDeviceAsync;
  allocation.session = imported->session;
  allocation.context = imported->context;
  allocation.device = imported->device;
  RCUDA_RETURN_IF_CUDA_ERROR(record_memory(std::move(allocation)));
  *address = found;
  return CUDA_SUCCESS;
}

// `retained` counts references of cuMemRetainAllocationHandle. A handle made by cuMemCreate or by
// an import has one more reference.

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  RCUDA_ASSIGN_OR_RETURN(const Route route,
                         find_address_route(reinterpret_cast<CUdeviceptr>(address)));
  rcuda::MutexLock lock(route.session->references_mutex());
  RCUDA_RETURN_IF_CUDA_ERROR(forward_cuMemRetainAllocationHandle(handle, address));
  // If the application had released the handle completely, the worker returns a new handle, and
  // this is its first reference.
  auto* const retained = find_allocation(*handle);
  if (!retained) return CUDA_ERROR_UNKNOWN;  // the worker's reply is wrong
  ++retained->retained;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  RCUDA_RETURN_IF_CUDA_ERROR(Process::get().check());
  auto* allocation = find_allocation(handle);
  if (!allocation) return CUDA_ERROR_INVALID_VALUE;
  forget_closed();
  // Look the handle up again: before the mutex was locked, another thread may have released the
  // last reference.
  const Session* const session = allocation->session;
  rcuda::MutexLock lock(allocation->session->references_mutex());
  allocation = find_allocation(handle);
  if (!allocation || allocation->session != session) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t made_with = allocation->id & wire::kWorkerMinted ? 0 : 1;
  if (allocation->retained + made_with <= 1) return forward_cuMemRelease(handle);
  --allocation->retained;
  return forward_rcuda_allocation_release(handle);
}

}  // extern "C"
