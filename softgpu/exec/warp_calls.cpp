// Calls: frames, stacks, arguments and results.
#include <algorithm>
#include <bit>
#include <cstring>

#include "softgpu/exec/block.h"
#include "softgpu/exec/loaded_program.h"
#include "softgpu/exec/round_up.h"
#include "softgpu/exec/warp.h"

namespace softgpu::exec {
namespace {

constexpr uint32_t kFrameOverheadBytes = 32;  // for the return address and saved registers

}  // namespace

Frame* Warp::new_frame(const Function& function) {
  Frame* frame = nullptr;
  // Searches all free frames, which are few, for the smallest that is large enough.
  for (Frame*& candidate : free_frames_) {
    if (candidate->capacity < function.register_bytes) continue;
    if (frame == nullptr || candidate->capacity < frame->capacity) frame = candidate;
  }
  if (frame != nullptr) {
    std::erase(free_frames_, frame);
  } else {
    frames_.push_back(std::make_unique<Frame>());
    frame = frames_.back().get();
    frame->capacity = function.register_bytes;
    frame->storage = AlignedBytes(frame->capacity);
    frame->registers = frame->storage.data.get();
    std::memset(frame->registers, 0, frame->capacity);
  }
  frame->function = &function;
  frame->caller = nullptr;
  frame->site = nullptr;
  frame->return_pc = 0;
  frame->depth = 0;
  frame->local_base = 0;
  return frame;
}

void Warp::leave_frame(Frame* frame, uint32_t lanes) {
  const auto count = static_cast<uint32_t>(std::popcount(lanes));
  // Lanes that return leave one frame; lanes that exit (no longer live) leave all frames.
  const bool all = (lanes & live_) == 0;
  while (frame != nullptr) {
    Frame* caller = frame->caller;
    frame->lanes -= count;
    if (frame->lanes == 0) free_frames_.push_back(frame);
    if (!all) return;
    frame = caller;
  }
}

bool Warp::grow_stack(uint32_t bytes) {
  if (bytes <= stack_stride_) return true;
  if (bytes > kMaxLocalBytes) return false;
  // An odd number of cache lines, so that the lanes' stacks do not compete for the same cache sets.
  uint32_t stride = (std::max(bytes, 2 * stack_stride_) + 63) / 64 * 64;
  if (stride / 64 % 2 == 0) stride += 64;
  AlignedBytes larger(static_cast<size_t>(stride) * kLanes);
  std::memset(larger.data.get(), 0, static_cast<size_t>(stride) * kLanes);
  for (uint32_t l = 0; l < kLanes && stack_stride_ != 0; ++l) {
    std::memcpy(larger.data.get() + static_cast<size_t>(l) * stride,
                stack_.data.get() + static_cast<size_t>(l) * stack_stride_, stack_stride_);
  }
  stack_ = std::move(larger);
  stack_stride_ = stride;
  return true;
}

const Function* Warp::indirect_callee(const Instr& i, uint32_t* lanes) {
  const uint64_t* targets = block_.lanes().at<uint64_t>(i.a);
  const auto first = static_cast<uint32_t>(std::countr_zero(*lanes));
  const uint64_t target = targets[first];
  const Function* callee = block_.grid().program->function_at(target);
  if (callee == nullptr || callee->is_entry) {
    fault(i, first, CUDA_ERROR_ILLEGAL_INSTRUCTION, "call of an address that is not a function");
    return nullptr;
  }
  uint32_t same = 0;
  for (uint32_t l = first; l < kLanes; ++l) {
    if ((*lanes >> l & 1) != 0 && targets[l] == target) same |= 1u << l;
  }
  *lanes = same;
  return callee;
}

bool Warp::call(const Instr& i, const CallSite& site, const Function& callee, uint32_t lanes,
                Strand* strand, uint32_t return_pc) {
  Frame* caller = strand->frame;
  const auto base = static_cast<uint32_t>(
      round_up(caller->stack_end + kFrameOverheadBytes, callee.local_align_bytes));
  const uint32_t end = base + callee.stack_bytes;
  if (end < base || !grow_stack(end)) {
    fault(i, static_cast<uint32_t>(std::countr_zero(lanes)), CUDA_ERROR_ILLEGAL_ADDRESS,
          "stack overflow");
    return false;
  }
  Frame* frame = new_frame(callee);
  frame->caller = caller;
  frame->site = &site;
  frame->return_pc = return_pc;
  frame->lanes = static_cast<uint32_t>(std::popcount(lanes));
  frame->depth = caller->depth + 1;
  frame->local_base = base;
  frame->stack_end = end;
  const size_t count = std::min(site.arguments.size(), callee.parameters.size());
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    std::byte* stack =
        stack_.data.get() + static_cast<size_t>(std::countr_zero(rest)) * stack_stride_;
    for (size_t k = 0; k < count; ++k) {
      const Area& from = site.arguments[k];
      const Area& to = callee.parameters[k];
      std::memcpy(stack + base + to.offset_bytes, stack + caller->local_base + from.offset_bytes,
                  std::min(from.size_bytes, to.size_bytes));
    }
  }
  strand->frame = frame;
  strand->pc = 0;
  return true;
}

void Warp::copy_results(const Frame& callee, uint32_t lanes) {
  const size_t count = std::min(callee.site->returns.size(), callee.function->returns.size());
  for (uint32_t rest = lanes; count != 0 && rest != 0; rest &= rest - 1) {
    std::byte* stack =
        stack_.data.get() + static_cast<size_t>(std::countr_zero(rest)) * stack_stride_;
    for (size_t k = 0; k < count; ++k) {
      const Area& from = callee.function->returns[k];
      const Area& to = callee.site->returns[k];
      std::memcpy(stack + callee.caller->local_base + to.offset_bytes,
                  stack + callee.local_base + from.offset_bytes,
                  std::min(from.size_bytes, to.size_bytes));
    }
  }
}

}  // namespace softgpu::exec
