// A pool of threads for parallel work such as large copies. All sessions share the threads. A
// thread starts when it is first needed.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include <cuda.h>

namespace rcuda::client {

// Returns the number of threads that one copy may use, including the caller: RCUDA_COPY_THREADS, or
// the number of processors that the process may use, up to 8.
size_t copy_threads();

// Runs task(0) ... task(count - 1) once each, on the caller and up to copy_threads() - 1 other
// threads, and returns when all are done. A task must not wait for a later task. After the first
// exception no further task begins; the exception is rethrown when the running tasks have ended.
void run_parallel(size_t count, const std::function<void(size_t)>& task);

// Keeps the first failure of several tasks; *first begins as CUDA_SUCCESS.
inline void note_failure(std::atomic<int>* first, CUresult result) {
  int none = CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) first->compare_exchange_strong(none, result);
}

}  // namespace rcuda::client
