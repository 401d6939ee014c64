// The driver's error log. It is always empty: rcuda logs to stderr (RCUDA_LOG), and messages of a
// worker's driver go to the server's log.

#include <cstdio>
#include <set>

#include <cuda.h>

#include "common/base/mutex.h"

namespace {

rcuda::Mutex callbacks_mutex;
std::set<CUlogsCallbackHandle>& callbacks() RCUDA_REQUIRES(callbacks_mutex) {
  static auto* instance = new std::set<CUlogsCallbackHandle>;
  return *instance;
}

}  // namespace

extern "C" {

CUresult cuLogsRegisterCallback(CUlogsCallback function, void*, CUlogsCallbackHandle* handle) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  static size_t last = 0;
  rcuda::MutexLock lock(callbacks_mutex);
  const auto made = reinterpret_cast<CUlogsCallbackHandle>(++last);
  callbacks().insert(made);
  if (handle) *handle = made;
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  rcuda::MutexLock lock(callbacks_mutex);
  return callbacks().erase(handle) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned flags) {
  if (!iterator || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *iterator = 0;
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator*, const char* path, unsigned flags) {
  if (!path || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  (void)std::fclose(file);
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToMemory(CUlogIterator*, char* buffer, size_t* size, unsigned flags) {
  if (!buffer || !size || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (*size > 0) buffer[0] = 0;
  *size = 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
