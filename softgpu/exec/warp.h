// One warp: 32 lanes that execute together while they follow the same path.
//
// Lanes that take different branches become strands: sets of lanes with their own program counter
// and frame. The strand with the lowest position runs first, and strands that meet are merged, so
// diverged lanes join again where their paths join. From time to time, the strand that has waited
// longest gets a short turn; spin locks between lanes of one warp need this.
//
// A warp belongs to a Block and runs only on the block's worker thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/exec/code.h"
#include "softgpu/exec/collective.h"
#include "softgpu/exec/lanes.h"

namespace softgpu::exec {

class Block;

// A call in progress, shared by the lanes that made it together.
struct Frame {
  const Function* function = nullptr;
  Frame* caller = nullptr;
  const CallSite* site = nullptr;
  uint32_t return_pc = 0;
  uint32_t lanes = 0;  // the number of lanes in this call, or in calls made from it
  uint32_t depth = 0;
  uint32_t local_base = 0;
  uint32_t stack_end = 0;  // end of the frame in each lane's stack
  std::byte* registers = nullptr;
  AlignedBytes storage;
  uint32_t capacity = 0;  // of storage
};

struct Strand {
  enum class State : uint8_t { kRunnable, kAtBarrier, kAtCollective };
  uint32_t mask = 0;
  uint32_t pc = 0;
  Frame* frame = nullptr;
  State state = State::kRunnable;
  uint32_t waits_for = 0;  // barrier number, or the collective's member mask
  const Instr* waits_at = nullptr;
  uint64_t last_turn = 0;
};

class Warp {
 public:
  enum class Outcome : uint8_t { kDone, kBlocked, kYielded, kFaulted };

  Warp(Block& block, uint32_t index) : block_(block), index_(index) {}
  ~Warp();
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;

  // Prepares the warp for a new block: the lanes in `lanes` exist and start at the entry.
  void start(const Function& entry, uint32_t lanes);
  std::byte* special() { return special_.data.get(); }

  // Runs until all lanes have exited, none can continue, or `fuel` is used up. Leaves the unused
  // fuel in `*fuel`.
  Outcome run(int64_t* fuel);

  bool done() const { return strand_count_ == 0; }
  bool blocked() const;
  uint32_t live_lanes() const { return live_; }
  uint32_t index() const { return index_; }

  // Releases the strands that wait at a barrier, with the result of its reduction.
  void release(uint32_t barrier, uint32_t popc, bool all, bool any);

  uint64_t instructions = 0;  // since start() or Block::take_counts()
  uint64_t thread_instructions = 0;

 private:
  static constexpr uint32_t kMaxStrands = kLanes + 1;
  static constexpr uint32_t kNone = ~0u;

  uint32_t pick();
  void execute(uint32_t index, bool alone_in_turn);
  void add_strand(uint32_t mask, uint32_t pc, Frame* frame);
  void remove_strand(uint32_t index);
  void merge_into(uint32_t index);
  uint32_t limit_for(const Strand& strand) const;
  static bool before(const Strand& a, const Strand& b);

  void enter(Frame* frame);
  bool call(const Instr& i, const CallSite& site, const Function& callee, uint32_t lanes,
            Strand* strand, uint32_t return_pc);
  const Function* indirect_callee(const Instr& i, uint32_t* lanes);
  Frame* new_frame(const Function& function);
  void leave_frame(Frame* frame, uint32_t lanes);
  void copy_results(const Frame& callee, uint32_t lanes);
  bool grow_stack(uint32_t bytes);
  void exit_lanes(uint32_t lanes, Frame* frame);

  // Collectives.
  bool collective_now(const Instr& i, uint32_t active, Strand* strand, uint32_t* done);
  void gather(const Instr& i, uint32_t lanes, Frame* frame, CollectiveOperands* in);
  void scatter(const Instr& i, uint32_t lanes, Frame* frame, const CollectiveResult& result);
  void check_collectives();

  void fault(const Instr& i);
  void fault(const Instr& i, uint32_t lane, CUresult code, const char* reason);

  Block& block_;
  const uint32_t index_;
  uint32_t live_ = 0;
  Strand strands_[kMaxStrands];
  uint32_t strand_count_ = 0;
  uint64_t turn_ = 0;
  int64_t patience_ = 0;
  bool rotate_ = false;  // the strand that has waited longest is next, wherever it is
  bool faulted_ = false;
  AlignedBytes special_;
  AlignedBytes stack_;
  uint32_t stack_stride_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;  // all ever made
  std::vector<Frame*> free_frames_;
};

}  // namespace softgpu::exec
