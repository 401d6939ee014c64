// RCUDA_INTEROP=OFF: every table is unknown.
#include "common/base/mutex.h"
#include "common/interop/export_tables.h"

namespace rcuda::interop {

void set_provider(Provider*) {}

CUresult get_export_table(const void** table, const CUuuid* id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

void context_destroyed(CUcontext) {}

void context_destroyed(CUcontext, MutexLock&) {}

}  // namespace rcuda::interop
