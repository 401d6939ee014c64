// BlockDigests: finds the blocks of a range of memory that differ from the client's copy. When the
// client gets or sends the bytes of a block, a kernel computes their digest of 128 bits. Later the
// kernel compares this digest with the digest of the present bytes. So nothing is copied to find
// changes.
//
// The range may be device, managed or page-locked memory. A change of a single word of 8 bytes
// always changes the digest of its block. Other changes go unnoticed with a probability of 2^-128.
// Digests and results are in page-locked memory of this process, which kernels of all contexts
// reach. Each block takes 17 bytes, which count as host memory of the session.
// Executor thread only. Nothing blocks, with two exceptions: make() may allocate memory, and the
// first use in a context loads the kernel. The caller must not destroy a BlockDigests while its
// kernels may be running in other streams than the fetch stream. Errors: the driver's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "api/driver_table.h"
#include "common/wire/block_digest.h"
#include "server/executor/mirrors/digest_memory.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class BlockDigests {
 public:
  static constexpr uint64_t kLeastBlockBytes = 4096;
  // A range has at most this many blocks; larger ranges have larger blocks.
  static constexpr uint64_t kMostBlocks = 1 << 20;

  // Returns null if the driver refuses the kernel or the memory, or if the session's quota does not
  // allow the memory. The current context must be `context`; it and `memory` outlive this object.
  static std::unique_ptr<BlockDigests> make(const api::DriverTable& driver, DigestMemory& memory,
                                            ContextState& context, uint64_t address,
                                            uint64_t bytes);
  // No work may use the object any more, except work in the context's fetch stream.
  ~BlockDigests();
  BlockDigests(const BlockDigests&) = delete;
  BlockDigests& operator=(const BlockDigests&) = delete;

  // The memory of the digests ends with this context.
  wire::ObjectId context() const { return context_.id; }
  uint64_t block_bytes() const { return block_bytes_; }
  uint64_t block_count() const { return block_count_; }

  // Functions with a `stream` parameter queue their computation in that stream.

  // Records that the client has only zeros. Does not read the memory.
  CUresult note_zeros(const SessionStream& stream);
  // Records that the client has, or is about to get, the bytes of [offset, offset + bytes). A block
  // that lies only partly in the range counts as changed until a later note covers it. Exception: a
  // range that reaches the end of the memory covers the last block, even if this block is shorter.
  CUresult note(const SessionStream& stream, uint64_t offset, uint64_t bytes);
  // Records that the client has blocks of kLeastBlockBytes with these digests, beginning with the
  // block that contains the offset. (If the blocks of this object are larger, they count as
  // changed.) Takes effect immediately, before the queued computations.
  void set(uint64_t offset, std::span<const wire::BlockDigest> digests);
  // Compares all blocks. next_changed() gives the result of the last comparison that has ended.
  // Blocks that no note covers count as changed.
  CUresult compare(const SessionStream& stream);
  // Returns the first changed block from `block` on, or block_count() if no such block has changed.
  uint64_t next_changed(uint64_t block) const;

 private:
  BlockDigests(const api::DriverTable& driver, DigestMemory& all, ContextState& context,
               uint64_t address, uint64_t bytes);
  uint64_t memory_bytes() const;
  CUresult forget(const SessionStream& stream, uint64_t block);
  CUresult launch(const SessionStream& stream, uint64_t address, uint64_t first, uint64_t count,
                  bool compares);

  const api::DriverTable& driver_;
  DigestMemory& all_;
  const ContextState& context_;
  const uint64_t address_, bytes_;
  uint64_t block_bytes_ = 0, block_count_ = 0;
  void* memory_ = nullptr;    // page-locked: the digests, then a flag for each block
  uint8_t* flags_ = nullptr;  // the flags in memory_: not 0 if the block has changed
};

}  // namespace rcuda::server
