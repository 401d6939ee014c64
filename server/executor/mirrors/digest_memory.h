// DigestMemory: page-locked memory for digests (block_digests.h). A driver takes longer to
// page-lock a page, and to free it, than to allocate the small managed memory whose digests are
// there. So what small digests give back is kept for the next ones of the same context.
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

  // Memory that kernels of all contexts reach, in the current context, which must be `context`.
  // It counts as host memory of the session, also while it is kept. Null: the driver's error, or
  // CUDA_ERROR_OUT_OF_MEMORY beyond the session's quota, is in *result.
  void* take(wire::ObjectId context, uint64_t bytes, CUresult* result);
  // `context` and `bytes` are those of take(). Unless it `is_unused`, kernels may still write to
  // it, and the driver frees it when they are over.
  void give(wire::ObjectId context, void* memory, uint64_t bytes, bool is_unused);
  // To be called before the context ends, and with it all memory that was taken in it.
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
