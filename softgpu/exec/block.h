// One running block (CTA): its warps, shared memory and barriers.
//
// A Block is used by one worker thread at a time and is reused for many blocks of the same grid.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/exec/lanes.h"
#include "softgpu/exec/memory.h"
#include "softgpu/exec/program.h"
#include "softgpu/exec/warp.h"

namespace softgpu::exec {

class LoadedProgram;

// Shared by all blocks of a grid. The launch sets it up; it is constant while the grid runs.
struct GridContext {
  const Launch* launch = nullptr;
  const Environment* environment = nullptr;
  const LoadedProgram* program = nullptr;
  const Function* entry = nullptr;
  const std::byte* parameters = nullptr;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;  // of the kernel's declared variables
  uint32_t shared_bytes = 0;         // size of shared memory, including dynamic
  uint64_t workspace = 0;            // memory of the grid-wide barrier; 0: not a cooperative launch
  const std::atomic<bool>* cancelled = nullptr;
};

class Block {
 public:
  enum class Outcome : uint8_t { kDone, kYielded, kStuck, kFaulted };

  explicit Block(const GridContext& grid);

  void start(uint64_t index);
  // Runs the block's warps in turn for about `fuel` instructions. kStuck: every thread waits for
  // another thread of this block, so the block can never continue.
  Outcome run(int64_t fuel);

  const GridContext& grid() const { return grid_; }
  Lanes& lanes() { return lanes_; }
  const Fault& fault() const { return fault_; }
  void set_fault(CUresult code, uint32_t warp, uint32_t lane, uint32_t line,
                 const std::string& what);
  const Dim3& id() const { return id_; }
  // The %tid of a lane.
  Dim3 thread(uint32_t warp, uint32_t lane) const;
  uint64_t index() const { return index_; }
  // Whether the last run() used most of its fuel in spin loops.
  bool spinning() const { return spinning_; }
  void take_counts(uint64_t* warp_instructions, uint64_t* thread_instructions);

  // Barriers. arrive() counts `lanes` of a warp as arrived. If they complete the barrier, arrive()
  // releases all strands (warp.h) that are marked as waiting for it. The caller's strand may be one
  // of them.
  void arrive(uint32_t barrier, uint32_t warp, uint32_t lanes, bool has_count, uint32_t count,
              uint32_t votes);
  void lanes_exited(uint32_t count);

  static constexpr uint32_t kBarriers = 16;

 private:
  struct Barrier {
    uint32_t arrived = 0;   // threads
    uint32_t expected = 0;  // threads; 0: all that have not exited
    uint32_t popc = 0;
    bool all = true;
    bool any = false;
    uint32_t lanes[32] = {};  // arrived lanes, by warp
  };

  void complete_if_full(uint32_t number);

  const GridContext& grid_;
  Lanes lanes_;
  Memory memory_;
  AlignedBytes shared_;
  std::vector<std::unique_ptr<Warp>> warps_;
  Barrier barriers_[kBarriers];
  uint32_t threads_ = 0;
  uint32_t live_threads_ = 0;
  uint64_t index_ = 0;
  Dim3 id_;
  Fault fault_;
  bool spinning_ = false;
};

}  // namespace softgpu::exec
