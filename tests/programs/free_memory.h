// What cudaMemGetInfo tells, in spite of other processes.
#pragma once

#include <chrono>
#include <thread>

#include "program.h"

// Whether an allocation is taken off the device's free memory and its release given back. Other
// processes may take and give memory at the same time, so one clean attempt of many is enough.
inline bool free_memory_counts(size_t bytes) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    size_t before = 0, during = 0, after = 0, total = 0;
    void* memory = nullptr;
    CUDA(cudaMemGetInfo(&before, &total));
    CHECK(before > 0 && before <= total);
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemGetInfo(&during, &total));
    CUDA(cudaFree(memory));
    CUDA(cudaMemGetInfo(&after, &total));
    if (during + bytes <= before && during + bytes <= after) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}
