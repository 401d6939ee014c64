// Checks the free memory that cudaMemGetInfo reports, while other processes use the device.
#pragma once

#include <chrono>
#include <thread>

#include "program.h"

// Whether an allocation decreases the device's free memory, and its release increases it again.
// Other processes may allocate and free memory meanwhile, so one success in many attempts is
// enough.
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
