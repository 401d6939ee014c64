#include "softgpu/exec/block.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "softgpu/exec/loaded_program.h"

namespace softgpu::exec {
namespace {

// Instructions in a warp's turn. A turn is long, because warps rarely wait for each other except at
// barriers.
constexpr int64_t kWarpTurn = 64 * 1024;

}  // namespace

Block::Block(const GridContext& grid) : grid_(grid) {
  const Dim3& block = grid.launch->block;
  threads_ = block.x * block.y * block.z;
  shared_ = AlignedBytes(std::max(grid.shared_bytes, 64u));
  std::memset(shared_.data.get(), 0, grid.shared_bytes);
  memory_.bind(grid.environment->memory, grid.program->constants());
  lanes_.memory = &memory_;
  lanes_.shared = shared_.data.get();
  lanes_.shared_bytes = grid.shared_bytes;
  lanes_.parameters = grid.parameters;
  lanes_.parameter_bytes = grid.parameter_bytes;
  lanes_.textures = grid.environment->textures.get();

  const Launch& launch = *grid.launch;
  const uint32_t warp_count = (threads_ + kLanes - 1) / kLanes;
  for (uint32_t w = 0; w < warp_count; ++w) {
    warps_.push_back(std::make_unique<Warp>(*this, w));
    warps_.back()->start(*grid.entry, 1);  // also allocates the memory of the special registers
    std::byte* special = warps_.back()->special();
    const auto set = [&](SpecialRegister which, uint32_t lane, uint32_t value) {
      std::memcpy(special + special_offset(which) + lane * sizeof value, &value, sizeof value);
    };
    for (uint32_t l = 0; l < kLanes; ++l) {
      const Dim3 t = thread(w, l);
      set(kTidX, l, t.x), set(kTidY, l, t.y), set(kTidZ, l, t.z);
      set(kNtidX, l, block.x), set(kNtidY, l, block.y), set(kNtidZ, l, block.z);
      set(kNctaidX, l, launch.grid.x), set(kNctaidY, l, launch.grid.y),
          set(kNctaidZ, l, launch.grid.z);
      set(kLaneId, l, l), set(kWarpId, l, w), set(kNumWarps, l, warp_count);
      set(kNumSms, l, grid.environment->multiprocessors);
      const uint32_t bit = 1u << l;
      set(kLaneMaskEq, l, bit), set(kLaneMaskLt, l, bit - 1), set(kLaneMaskLe, l, bit | (bit - 1));
      set(kLaneMaskGe, l, ~(bit - 1)), set(kLaneMaskGt, l, ~(bit | (bit - 1)));
      set(kDynamicSharedSize, l, launch.dynamic_shared_bytes);
      set(kTotalSharedSize, l, launch.dynamic_shared_bytes + grid.static_shared_bytes);
      set(kEnvReg1, l, static_cast<uint32_t>(grid.workspace >> 32));
      set(kEnvReg2, l, static_cast<uint32_t>(grid.workspace));
      set(kOne, l, 1);
      const uint64_t id = launch.grid_id;
      std::memcpy(special + special_offset(kGridId) + l * sizeof id, &id, sizeof id);
    }
  }
}

Dim3 Block::thread(uint32_t warp, uint32_t lane) const {
  const Dim3& block = grid_.launch->block;
  const uint32_t t = warp * kLanes + lane;
  return {t % block.x, t / block.x % block.y, t / block.x / block.y};
}

void Block::start(uint64_t index) {
  const Dim3& grid = grid_.launch->grid;
  index_ = index;
  id_ = {static_cast<uint32_t>(index % grid.x), static_cast<uint32_t>(index / grid.x % grid.y),
         static_cast<uint32_t>(index / grid.x / grid.y)};
  live_threads_ = threads_;
  for (Barrier& barrier : barriers_) barrier = Barrier();
  lanes_.faulted = false;
  const auto sm = static_cast<uint32_t>(index % std::max(grid_.environment->multiprocessors, 1u));
  for (uint32_t w = 0; w < warps_.size(); ++w) {
    const uint32_t count = std::min(threads_ - w * kLanes, kLanes);
    Warp& warp = *warps_[w];
    warp.start(*grid_.entry, count == kLanes ? kFullMask : (1u << count) - 1);
    const auto fill = [&](SpecialRegister which, uint32_t value) {
      auto* words = reinterpret_cast<uint32_t*>(warp.special() + special_offset(which));
      std::fill_n(words, kLanes, value);
    };
    fill(kCtaidX, id_.x), fill(kCtaidY, id_.y), fill(kCtaidZ, id_.z);
    fill(kSmId, sm);
  }
}

Block::Outcome Block::run(int64_t fuel) {
  spinning_ = false;
  uint64_t executed_before = 0;
  for (const auto& warp : warps_) executed_before += warp->instructions;
  const int64_t fuel_before = fuel;
  while (true) {
    bool alive = false;
    bool progress = false;
    for (const auto& warp : warps_) {
      if (warp->done()) continue;
      alive = true;
      if (warp->blocked()) continue;
      progress = true;
      int64_t turn = kWarpTurn;
      const Warp::Outcome outcome = warp->run(&turn);
      fuel -= kWarpTurn - turn;
      if (outcome == Warp::Outcome::kFaulted) return Outcome::kFaulted;
    }
    if (!alive) return Outcome::kDone;
    if (!progress) return Outcome::kStuck;
    if (fuel <= 0 || grid_.cancelled->load(std::memory_order_relaxed)) {
      uint64_t executed = 0;
      for (const auto& warp : warps_) executed += warp->instructions;
      // Instructions of spin loops cost extra fuel (lanes.h). Much more fuel than instructions
      // means that spin loops used most of the fuel.
      spinning_ = static_cast<int64_t>(executed - executed_before) * 4 < fuel_before - fuel;
      return Outcome::kYielded;
    }
  }
}

void Block::set_fault(CUresult code, uint32_t warp, uint32_t lane, uint32_t line,
                      const std::string& what) {
  const Dim3 t = thread(warp, lane);
  char where[200];
  std::snprintf(where, sizeof where, "block [%u,%u,%u], thread [%u,%u,%u], PTX line %u: ", id_.x,
                id_.y, id_.z, t.x, t.y, t.z, line);
  fault_.code = code;
  fault_.message = "kernel '" + grid_.launch->kernel->name + "', " + where + what;
}

void Block::take_counts(uint64_t* warp_instructions, uint64_t* thread_instructions) {
  for (const auto& warp : warps_) {
    *warp_instructions += std::exchange(warp->instructions, 0);
    *thread_instructions += std::exchange(warp->thread_instructions, 0);
  }
}

void Block::arrive(uint32_t number, uint32_t warp, uint32_t lanes, bool has_count, uint32_t count,
                   uint32_t votes) {
  Barrier& barrier = barriers_[number];
  barrier.arrived += static_cast<uint32_t>(std::popcount(lanes));
  barrier.lanes[warp] |= lanes;
  if (has_count) barrier.expected = count;
  const uint32_t yes = votes & lanes;
  barrier.popc += static_cast<uint32_t>(std::popcount(yes));
  barrier.all = barrier.all && yes == lanes;
  barrier.any = barrier.any || yes != 0;
  complete_if_full(number);
}

void Block::lanes_exited(uint32_t count) {
  live_threads_ -= count;
  for (uint32_t k = 0; k < kBarriers; ++k) complete_if_full(k);
}

void Block::complete_if_full(uint32_t number) {
  Barrier& barrier = barriers_[number];
  if (barrier.arrived == 0) return;
  if (barrier.expected == 0) {
    if (barrier.arrived < live_threads_) return;
  } else {
    // A thread count is a multiple of the warp size. So lanes that never existed, or have exited,
    // count as arrived when the rest of their warp has arrived.
    uint32_t counted = barrier.arrived;
    for (const auto& warp : warps_) {
      const uint32_t lanes = barrier.lanes[warp->index()];
      if (lanes != 0 && (lanes & warp->live_lanes()) == warp->live_lanes()) {
        counted += kLanes - static_cast<uint32_t>(std::popcount(lanes));
      }
    }
    if (counted < barrier.expected) return;
  }
  const Barrier complete = barrier;
  barrier = Barrier();
  for (const auto& warp : warps_) warp->release(number, complete.popc, complete.all, complete.any);
}

}  // namespace softgpu::exec
