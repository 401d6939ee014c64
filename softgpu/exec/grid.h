// A grid being run, and the worker pool that runs all grids of the process.
//
// Blocks start in index order. A block that has used its time up, or that only waits for others, is
// parked and another one gets the worker; a grid never has more blocks under way than its device
// could hold at once (a cooperative one: all of them). So blocks that wait for earlier blocks, for
// co-resident ones, or for another grid, make progress, on however few workers.
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
  uint64_t next_ = 0;  // the first block not started yet
  uint64_t finished_ = 0;
  uint64_t resident_ = 0;  // started and not finished
  uint64_t resident_limit_ = 0;
  uint32_t workers_ = 0;  // running one of its blocks now
  bool new_one_next_ = true;
  bool warned_ = false;
  std::deque<std::unique_ptr<Block>> parked_;
  std::vector<std::unique_ptr<Block>> stuck_;  // can never go on
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
    std::unique_ptr<Block> block;  // parked, or to be reused; nullptr: to be made
    bool starts = false;
    uint64_t index = 0;  // of the block to start
  };
  // Something to run; waits for it. Called with the lock held.
  Claim next_claim(std::unique_lock<std::mutex>& lock);
  static bool claim_from(Grid& grid, Claim* claim);
  void finish(Grid& grid, std::unique_ptr<Block> block, Block::Outcome outcome);
  static bool complete(const Grid& grid);

  std::mutex mutex_;
  std::condition_variable work_available_;
  std::deque<Grid*> grids_;     // in turn
  size_t fruitless_turns_ = 0;  // since a block did anything but spin
};

}  // namespace softgpu::exec
