// A running grid, and the worker pool that runs all grids of the process.
//
// Blocks start in index order. A block that has used up its time, or that only waits for other
// blocks, is parked, and another block gets the worker. The number of blocks that are started and
// unfinished is unlimited in a cooperative grid. In any other grid the limit is two for each
// multiprocessor of the device, but at least 16. So blocks that wait for earlier blocks, for
// co-resident blocks, or for another grid make progress with any number of workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "softgpu/exec/block.h"

namespace softgpu::exec {

class Grid {
 public:
  Grid(const Launch& launch, const Environment& environment);
  ~Grid();
  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  const GridContext& context() const { return context_; }

 private:
  friend class WorkerPool;

  GridContext context_;
  AlignedBytes parameters_;
  alignas(64) uint32_t workspace_[16] = {};
  std::atomic<bool> cancelled_{false};

  // Guarded by the pool's mutex.
  uint64_t total_ = 0;
  uint64_t next_ = 0;  // index of the next block to start
  uint64_t finished_ = 0;
  uint64_t resident_ = 0;  // started and not finished
  uint64_t resident_limit_ = 0;
  uint32_t workers_ = 0;  // workers that run one of its blocks now
  bool new_one_next_ = true;
  bool warned_ = false;
  std::deque<std::unique_ptr<Block>> parked_;
  std::vector<std::unique_ptr<Block>> stuck_;  // can never continue
  std::vector<std::unique_ptr<Block>> spare_;
  Fault fault_;
  std::condition_variable done_;
};

class WorkerPool {
 public:
  static WorkerPool& instance();
  Fault run(Grid& grid, const std::atomic<bool>* stop);

 private:
  WorkerPool();
  void work();
  struct Claim {
    Grid* grid = nullptr;
    std::unique_ptr<Block> block;  // a parked or spare block; nullptr: a new block must be made
    bool starts = false;
    uint64_t index = 0;  // index of the block to start
  };
  // Waits until a grid has a block to run. Called with the lock held.
  Claim next_claim(std::unique_lock<std::mutex>& lock);
  static bool claim_from(Grid& grid, Claim* claim);
  void finish(Grid& grid, std::unique_ptr<Block> block, Block::Outcome outcome);
  static bool complete(const Grid& grid);

  std::mutex mutex_;
  std::condition_variable work_available_;
  std::deque<Grid*> grids_;     // served in turn
  size_t fruitless_turns_ = 0;  // turns since a block last did more than spin
};

}  // namespace softgpu::exec
