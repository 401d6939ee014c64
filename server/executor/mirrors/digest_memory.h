// DigestMemory: allocates page-locked memory for digests (block_digests.h). A driver takes longer
// to allocate and free a page-locked page than to allocate a small piece of managed memory. So the
// memory of the digests of small mirrors is kept for later digests in the same context.
//
// Executor thread only. take() and give() may block as a driver's allocation does.
#pragma once

#include <cstdint>
#include <vector>

#include "api/driver_table.h"
#include "common/wire/protocol.h"
#include "server/executor/metering/memory_meter.h"

namespace rcuda::server {

class DigestMemory {
 public:
  // Both outlive this object.
  DigestMemory(const api::DriverTable& driver, MemoryMeter& meter)
      : driver_(driver), meter_(meter) {}
  ~DigestMemory();
  DigestMemory(const DigestMemory&) = delete;
  DigestMemory& operator=(const DigestMemory&) = delete;

  // Returns memory that kernels of all contexts reach. It belongs to the current context, which
  // must be `context`, and counts as host memory of the session, also while it is kept. After a
  // failure returns null and sets *result to the driver's error, or to CUDA_ERROR_OUT_OF_MEMORY
  // beyond the session's quota.
  void* take(wire::ObjectId context, uint64_t bytes, CUresult* result);
  // `context` and `bytes` are those of take(). If `is_unused` is false, kernels may still write to
  // the memory. It is then not kept, and the driver frees it when these kernels have ended.
  void give(wire::ObjectId context, void* memory, uint64_t bytes, bool is_unused);
  // To be called before the context ends. All memory that was taken in the context ends with the
  // context.
  void forget_context(wire::ObjectId context);

 private:
  struct Kept {
    wire::ObjectId context;
    void* memory;
    uint64_t bytes;
  };
  void free(const Kept& piece);

  const api::DriverTable& driver_;
  MemoryMeter& meter_;
  std::vector<Kept> kept_;
};

}  // namespace rcuda::server
