// BlockDigests: which blocks of a range of memory have changed. A kernel computes a digest of 128
// bits for each block and compares it with the last one, so nothing has to be copied to find out.
//
// The range may be device, managed or page-locked memory. A block in which one word of 8 bytes has
// changed always gets another digest; other changes go unnoticed with a chance of 2^-128.
// Digests and results are in page-locked memory of this process, which kernels of all contexts
// reach: 17 bytes for each block.
// Executor thread only. Nothing blocks, except that make() may allocate and load the kernel. The
// caller must not destroy a BlockDigests while its kernels may be running. Errors: the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "api/driver_table.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class BlockDigests {
 public:
  static constexpr uint64_t kLeastBlockBytes = 4096;
  // A range has at most this many blocks; larger ranges have larger blocks.
  static constexpr uint64_t kMostBlocks = 1 << 20;

  // Null if the driver refuses it. The current context must be `context`.
  static std::unique_ptr<BlockDigests> make(const api::DriverTable& driver, ContextState& context,
                                            uint64_t address, uint64_t bytes);
  ~BlockDigests();
  BlockDigests(const BlockDigests&) = delete;
  BlockDigests& operator=(const BlockDigests&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }
  uint64_t block_count() const { return block_count_; }

  // Queues the computation for the blocks that lie in [offset, offset + bytes), the last one of the
  // memory included if the range ends there. They then count as unchanged. A block that lies in the
  // range in part only may be told as changed.
  CUresult note(const SessionStream& stream, uint64_t offset, uint64_t bytes);
  // Queues the comparison of all blocks. Once it is done, changed() answers until the next one. A
  // block that no earlier call covered has changed.
  CUresult compare(const SessionStream& stream);
  bool changed(uint64_t block) const { return flags_[block] != 0; }

 private:
  BlockDigests(const api::DriverTable& driver, uint64_t address, uint64_t bytes);
  CUresult launch(const SessionStream& stream, uint64_t first, uint64_t count, bool compares);

  const api::DriverTable& driver_;
  const uint64_t address_, bytes_;
  uint64_t block_bytes_ = 0, block_count_ = 0;
  void* memory_ = nullptr;  // page-locked: the digests, then a flag for each block
  const volatile uint8_t* flags_ = nullptr;
};

}  // namespace rcuda::server
