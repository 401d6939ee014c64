#include "softgpu/exec/grid.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <pthread.h>
#include <xmmintrin.h>

#include "common/base/log.h"
#include "softgpu/exec/loaded_program.h"

namespace softgpu::exec {
namespace {

// How many instructions a block runs before another block gets its worker: some milliseconds of
// arithmetic, or much less of spinning. In a cooperative grid the number is smaller, because its
// blocks often wait for each other.
constexpr int64_t kBlockFuel = 4 * 1024 * 1024;
constexpr int64_t kCooperativeFuel = 256 * 1024;
constexpr auto kStopPoll = std::chrono::milliseconds(20);

std::atomic<uint64_t> warp_instruction_count{0};
std::atomic<uint64_t> thread_instruction_count{0};
std::atomic<unsigned> wanted_workers{0};

unsigned worker_count() {
  if (const unsigned wanted = wanted_workers.load(std::memory_order_relaxed)) return wanted;
  cpu_set_t set;
  if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0) {
    return static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
  }
  return std::max(std::thread::hardware_concurrency(), 1u);
}

}  // namespace

Grid::Grid(const Launch& launch, const Environment& environment) {
  const auto& code = *static_cast<const KernelCode*>(launch.kernel->code);
  parameters_ = AlignedBytes(std::max<size_t>(launch.kernel->parameter_bytes, 64));
  std::memset(parameters_.data.get(), 0, launch.kernel->parameter_bytes);
  if (!launch.parameters.empty()) {
    std::memcpy(parameters_.data.get(), launch.parameters.data(),
                std::min<size_t>(launch.parameters.size(), launch.kernel->parameter_bytes));
  }
  context_.launch = &launch;
  context_.environment = &environment;
  context_.program = code.program;
  context_.entry = code.entry;
  context_.parameters = parameters_.data.get();
  context_.parameter_bytes = launch.kernel->parameter_bytes;
  context_.static_shared_bytes = launch.kernel->static_shared_bytes;
  context_.shared_bytes = code.program->dynamic_shared_offset() + launch.dynamic_shared_bytes;
  context_.cancelled = &cancelled_;
  total_ = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  resident_limit_ = std::max<uint64_t>(2ull * environment.multiprocessors, 16);
  if (launch.cooperative) {
    // The grid-wide barrier of cooperative groups is in device memory that the driver provides.
    const auto address = reinterpret_cast<uint64_t>(workspace_);
    if (environment.memory->add(address, sizeof workspace_)) context_.workspace = address;
    resident_limit_ = total_;
  }
}

Grid::~Grid() {
  if (context_.workspace != 0) context_.environment->memory->remove(context_.workspace);
}

WorkerPool& WorkerPool::instance() {
  // Never destroyed: the workers run until the process ends.
  static auto* pool = new WorkerPool;
  return *pool;
}

WorkerPool::WorkerPool() {
  // Signals of the application must not be delivered to the workers.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const unsigned count = worker_count();
  for (unsigned k = 0; k < count; ++k) {
    std::thread worker([this] { work(); });
    pthread_setname_np(worker.native_handle(), "softgpu-exec");
    worker.detach();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool WorkerPool::complete(const Grid& grid) {
  if (grid.workers_ != 0) return false;
  return grid.finished_ == grid.total_ || grid.cancelled_.load(std::memory_order_relaxed);
}

Fault WorkerPool::run(Grid& grid, const std::atomic<bool>* stop) {
  std::unique_lock lock(mutex_);
  grids_.push_back(&grid);
  work_available_.notify_all();
  while (!complete(grid)) {
    if (stop == nullptr) {
      grid.done_.wait(lock);
      continue;
    }
    grid.done_.wait_for(lock, kStopPoll);
    if (stop->load(std::memory_order_relaxed) && !grid.cancelled_.load(std::memory_order_relaxed)) {
      grid.cancelled_.store(true, std::memory_order_relaxed);
      if (grid.fault_.code == CUDA_SUCCESS) {
        grid.fault_ = {CUDA_ERROR_LAUNCH_FAILED,
                       "kernel '" + grid.context_.launch->kernel->name +
                           "' was stopped: its context is being destroyed"};
      }
    }
  }
  std::erase(grids_, &grid);
  return grid.fault_;
}

bool WorkerPool::claim_from(Grid& grid, Claim* claim) {
  if (grid.cancelled_.load(std::memory_order_relaxed)) return false;
  const bool can_start = grid.next_ < grid.total_ && grid.resident_ < grid.resident_limit_;
  claim->starts = can_start && (grid.new_one_next_ || grid.parked_.empty());
  if (claim->starts) {
    if (!grid.spare_.empty()) {
      claim->block = std::move(grid.spare_.back());
      grid.spare_.pop_back();
    }
    claim->index = grid.next_++;
    ++grid.resident_;
  } else if (!grid.parked_.empty()) {
    claim->block = std::move(grid.parked_.front());
    grid.parked_.pop_front();
  } else {
    return false;
  }
  claim->grid = &grid;
  grid.new_one_next_ = !claim->starts;
  ++grid.workers_;
  return true;
}

WorkerPool::Claim WorkerPool::next_claim(std::unique_lock<std::mutex>& lock) {
  while (true) {
    for (size_t k = 0; k < grids_.size(); ++k) {
      Grid* grid = grids_.front();
      grids_.pop_front();
      grids_.push_back(grid);
      Claim claim;
      if (claim_from(*grid, &claim)) return claim;
    }
    work_available_.wait(lock);
  }
}

void WorkerPool::finish(Grid& grid, std::unique_ptr<Block> block, Block::Outcome outcome) {
  switch (outcome) {
    case Block::Outcome::kDone:
      ++grid.finished_;
      --grid.resident_;
      grid.spare_.push_back(std::move(block));
      break;
    case Block::Outcome::kYielded:
      // A spinning block probably waits for a block that has not started, so a new block is next.
      if (block->spinning()) grid.new_one_next_ = true;
      grid.parked_.push_back(std::move(block));
      work_available_.notify_one();
      break;
    case Block::Outcome::kStuck:
      // The grid never ends, as on hardware. The worker executes other grids, and the log gets a
      // hint.
      if (!std::exchange(grid.warned_, true)) {
        RCUDA_ERROR(
            "kernel '%s' hangs: every thread of block %llu waits at a barrier or for other threads "
            "of its warp, and no thread is left to release them",
            grid.context_.launch->kernel->name.c_str(),
            static_cast<unsigned long long>(block->index()));
      }
      grid.stuck_.push_back(std::move(block));
      break;
    case Block::Outcome::kFaulted:
      if (grid.fault_.code == CUDA_SUCCESS) grid.fault_ = block->fault();
      grid.cancelled_.store(true, std::memory_order_relaxed);
      break;
  }
  --grid.workers_;
  if (complete(grid)) grid.done_.notify_all();
}

void WorkerPool::work() {
  // Rounds to nearest and keeps subnormals. A new thread inherits other settings of its creator.
  _mm_setcsr(0x1f80);
  std::unique_lock lock(mutex_);
  while (true) {
    Claim claim = next_claim(lock);
    lock.unlock();
    Grid& grid = *claim.grid;
    std::unique_ptr<Block> block = std::move(claim.block);
    if (block == nullptr) block = std::make_unique<Block>(grid.context_);
    if (claim.starts) block->start(claim.index);
    const Block::Outcome outcome =
        block->run(grid.context_.launch->cooperative ? kCooperativeFuel : kBlockFuel);
    uint64_t warp_instructions = 0, thread_instructions = 0;
    block->take_counts(&warp_instructions, &thread_instructions);
    warp_instruction_count.fetch_add(warp_instructions, std::memory_order_relaxed);
    thread_instruction_count.fetch_add(thread_instructions, std::memory_order_relaxed);
    const bool spun = outcome == Block::Outcome::kYielded && block->spinning();
    lock.lock();
    finish(grid, std::move(block), outcome);
    fruitless_turns_ = spun ? fruitless_turns_ + 1 : 0;
    size_t waiting = 0;
    for (const Grid* g : grids_) waiting += g->parked_.size();
    if (fruitless_turns_ <= waiting) continue;
    // All started blocks have spun for a whole round. They may wait for another thread or process,
    // which may need this processor.
    fruitless_turns_ = 0;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
}

Fault run(const Launch& launch, const Environment& environment, const std::atomic<bool>* stop) {
  if (launch.kernel == nullptr || launch.kernel->code == nullptr || environment.memory == nullptr) {
    return {CUDA_ERROR_INVALID_VALUE, "launch without a kernel"};
  }
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > 1024 || launch.grid.x == 0 || launch.grid.y == 0 ||
      launch.grid.z == 0) {
    return {CUDA_ERROR_INVALID_VALUE, "launch with an invalid number of threads"};
  }
  if (!launch.kernel->unsupported.empty()) {
    return {CUDA_ERROR_NOT_SUPPORTED,
            "kernel '" + launch.kernel->name +
                "' needs an unsupported feature: " + launch.kernel->unsupported};
  }
  Grid grid(launch, environment);
  return WorkerPool::instance().run(grid, stop);
}

void set_worker_count(unsigned count) { wanted_workers.store(count, std::memory_order_relaxed); }

Counters counters() {
  return {warp_instruction_count.load(std::memory_order_relaxed),
          thread_instruction_count.load(std::memory_order_relaxed)};
}

}  // namespace softgpu::exec
