#include "softgpu/exec/warp.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>

#include "softgpu/exec/block.h"
#include "softgpu/exec/device_calls.h"
#include "softgpu/exec/loaded_program.h"

namespace softgpu::exec {
namespace {

constexpr uint32_t kNoLimit = std::numeric_limits<uint32_t>::max();
// How many instructions diverged strands may execute before the strand that has waited longest gets
// a short turn out of order.
constexpr int64_t kPatience = 128 * 1024;
constexpr int64_t kShortTurn = 4096;

}  // namespace

Warp::~Warp() = default;

void Warp::start(const Function& entry, uint32_t lanes) {
  if (special_.data == nullptr) {
    special_ = AlignedBytes(kSpecialBytes);
    std::memset(special_.data.get(), 0, kSpecialBytes);
  }
  free_frames_.clear();
  for (const auto& frame : frames_) free_frames_.push_back(frame.get());
  live_ = lanes;
  strand_count_ = 0;
  turn_ = 0;
  rotate_ = false;
  patience_ = kPatience;
  faulted_ = false;
  instructions = 0;
  thread_instructions = 0;
  Frame* frame = new_frame(entry);
  frame->lanes = static_cast<uint32_t>(std::popcount(lanes));
  frame->stack_end = entry.stack_bytes;
  grow_stack(frame->stack_end);
  add_strand(lanes, 0, frame);
}

bool Warp::blocked() const {
  for (uint32_t k = 0; k < strand_count_; ++k) {
    if (strands_[k].state == Strand::State::kRunnable) return false;
  }
  return true;
}

Warp::Outcome Warp::run(int64_t* fuel) {
  Lanes& x = block_.lanes();
  x.warp = this;
  x.bank[static_cast<uint32_t>(Bank::kSpecial)] = special_.data.get();
  while (true) {
    if (strand_count_ == 0) return Outcome::kDone;
    if (*fuel <= 0) return Outcome::kYielded;
    const bool rotating = rotate_;
    const uint32_t next = pick();
    if (next == kNone) return Outcome::kBlocked;
    const int64_t turn = rotating ? std::min(kShortTurn, *fuel) : *fuel;
    x.fuel = turn;
    execute(next, rotating);
    const int64_t spent = turn - x.fuel;
    *fuel -= spent;
    if (faulted_) return Outcome::kFaulted;
    patience_ -= spent;
    if (patience_ <= 0) {
      patience_ = kPatience;
      rotate_ = strand_count_ > 1;
    }
  }
}

// Whether `a` is before `b`. Compares their positions at the deepest call that both are in.
bool Warp::before(const Strand& a, const Strand& b) {
  const Frame* fa = a.frame;
  const Frame* fb = b.frame;
  uint32_t pa = a.pc;
  uint32_t pb = b.pc;
  const auto up = [](const Frame*& f, uint32_t& pc) {
    pc = f->return_pc - 1;  // the call instruction
    f = f->caller;
  };
  const bool deeper = fa->depth > fb->depth;
  while (fa->depth > fb->depth) up(fa, pa);
  while (fb->depth > fa->depth) up(fb, pb);
  while (fa != fb) up(fa, pa), up(fb, pb);
  return pa != pb ? pa < pb : deeper;
}

uint32_t Warp::pick() {
  uint32_t best = kNone;
  for (uint32_t k = 0; k < strand_count_; ++k) {
    if (strands_[k].state != Strand::State::kRunnable) continue;
    if (best == kNone) {
      best = k;
    } else if (rotate_ ? strands_[k].last_turn < strands_[best].last_turn
                       : before(strands_[k], strands_[best])) {
      best = k;
    }
  }
  rotate_ = false;
  if (best != kNone) strands_[best].last_turn = ++turn_;
  return best;
}

// The lowest pc in the frame of `strand` at which another runnable strand is, or has called a
// function. There `strand` stops, so that the two can be merged.
uint32_t Warp::limit_for(const Strand& strand) const {
  uint32_t limit = kNoLimit;
  for (uint32_t k = 0; k < strand_count_; ++k) {
    const Strand& other = strands_[k];
    if (&other == &strand || other.state != Strand::State::kRunnable) continue;
    const Frame* frame = other.frame;
    uint32_t pc = other.pc;
    while (frame != nullptr && frame->depth > strand.frame->depth) {
      pc = frame->return_pc - 1;
      frame = frame->caller;
    }
    if (frame == strand.frame) limit = std::min(limit, pc);
  }
  return limit;
}

void Warp::add_strand(uint32_t mask, uint32_t pc, Frame* frame) {
  for (uint32_t k = 0; k < strand_count_; ++k) {
    Strand& s = strands_[k];
    if (s.state == Strand::State::kRunnable && s.frame == frame && s.pc == pc) {
      s.mask |= mask;
      return;
    }
  }
  Strand& s = strands_[strand_count_++];
  s = Strand();
  s.mask = mask;
  s.pc = pc;
  s.frame = frame;
  s.last_turn = turn_;
}

void Warp::remove_strand(uint32_t index) { strands_[index] = strands_[--strand_count_]; }

// Merges the strands that are at the same position as strand `index` into that strand.
void Warp::merge_into(uint32_t index) {
  for (uint32_t k = 0; k < strand_count_;) {
    const Strand& other = strands_[k];
    Strand& s = strands_[index];
    if (k != index && other.state == Strand::State::kRunnable && other.frame == s.frame &&
        other.pc == s.pc) {
      s.mask |= other.mask;
      remove_strand(k);
      if (index == strand_count_) index = k;  // the last strand moved into the gap
    } else {
      ++k;
    }
  }
}

void Warp::enter(Frame* frame) {
  Lanes& x = block_.lanes();
  x.bank[static_cast<uint32_t>(Bank::kRegisters)] = frame->registers;
  x.bank[static_cast<uint32_t>(Bank::kConstants)] = frame->function->constants.data.get();
  x.lists = frame->function->lists.data();
  x.local = stack_.data.get();
  x.local_stride = stack_stride_;
  x.local_base = frame->local_base;
  x.local_limit = frame->stack_end;
}

// Runs one strand until it must give way. `alone_in_turn`: the strand was chosen because it has
// waited longest, and need not stop where another strand waits (limit_for()).
void Warp::execute(uint32_t index, bool alone_in_turn) {
  Lanes& x = block_.lanes();
  merge_into(index);
  // merge_into() may have moved the strand.
  for (index = 0; strands_[index].last_turn != turn_; ++index) {
  }
  Strand& strand = strands_[index];
  Frame* frame = strand.frame;
  const Instr* code = frame->function->code.data();
  uint32_t pc = strand.pc;
  uint32_t mask = strand.mask;
  uint32_t segment = pc;  // start of the current straight run of instructions
  strand.pc = kNoLimit;   // while it runs, no strand may be merged into it
  enter(frame);
  uint32_t limit = alone_in_turn ? kNoLimit : limit_for(strand);
  x.mask = mask;

  // Counts the straight run up to here and starts a new run at `next`.
  const auto settle = [&](uint32_t next) {
    const uint32_t executed = pc + 1 - segment;
    instructions += executed;
    thread_instructions +=
        static_cast<uint64_t>(executed) * static_cast<uint32_t>(std::popcount(mask));
    x.fuel -= executed;
    pc = segment = next;
  };
  // Writes the strand back; the next pick() continues from there.
  const auto leave = [&] {
    strand.pc = pc;
    strand.mask = mask;
    strand.frame = frame;
  };

  while (true) {
    if (pc >= limit) {
      --pc;
      settle(pc + 1);
      return leave();
    }
    const Instr& i = code[pc];
    uint32_t active = mask;
    if (i.guard != kNoGuard) {
      uint32_t p;
      std::memcpy(&p, frame->registers + i.guard, sizeof p);
      active &= (i.flags & kGuardNegated) != 0 ? ~p : p;
    }
    switch (i.flow) {
      case Flow::kPlain:
        if (active != 0) {
          x.mask = active;
          i.handler(x, i);
        }
        ++pc;
        continue;

      case Flow::kFaulting:
        if (active != 0) {
          x.mask = active;
          i.handler(x, i);
          if (x.faulted) {
            leave();
            return fault(i);
          }
        }
        ++pc;
        continue;

      case Flow::kBranch:
        if (active == mask) {
          settle(i.target);
        } else if (active == 0) {
          ++pc;
          continue;
        } else {
          const uint32_t next = pc + 1;
          settle(next);
          const uint32_t other = mask & ~active;
          // Continue with the lanes that are at the lower pc.
          if (i.target < next) {
            mask = active;
            pc = segment = i.target;
            add_strand(other, next, frame);
          } else {
            mask = other;
            add_strand(active, i.target, frame);
          }
          if (!alone_in_turn) limit = std::min(limit, std::max(i.target, next));
        }
        if (x.fuel <= 0) return leave();
        continue;

      case Flow::kBranchTable: {
        if (active == 0) {
          ++pc;
          continue;
        }
        const uint32_t at = pc;
        settle(pc + 1);
        const auto& table = frame->function->branch_tables[i.target];
        const uint32_t* choice = x.at<uint32_t>(i.a);
        if (mask != active) add_strand(mask & ~active, at + 1, frame);
        remove_strand(static_cast<uint32_t>(&strand - strands_));
        for (uint32_t rest = active; rest != 0;) {
          const uint32_t lane = static_cast<uint32_t>(std::countr_zero(rest));
          if (choice[lane] >= table.size()) {
            return fault(i, lane, CUDA_ERROR_ILLEGAL_INSTRUCTION, "branch index beyond its table");
          }
          uint32_t same = 0;
          for (uint32_t l = lane; l < kLanes; ++l) {
            if ((rest >> l & 1) != 0 && choice[l] == choice[lane]) same |= 1u << l;
          }
          add_strand(same, table[choice[lane]], frame);
          rest &= ~same;
        }
        return;
      }

      case Flow::kCall:
      case Flow::kCallIndirect: {
        if (active == 0) {
          ++pc;
          continue;
        }
        const CallSite& site = frame->function->calls[i.target];
        if (i.flow == Flow::kCall && site.callee == nullptr) {
          x.mask = active;
          device_call(block_, *this, site, x);
          if (x.faulted) {
            leave();
            return fault(i);
          }
          ++pc;
          continue;
        }
        uint32_t callers = active;
        const Function* callee = site.callee;
        if (i.flow == Flow::kCallIndirect) {
          callee = indirect_callee(i, &callers);
          if (callee == nullptr) return leave();
        }
        const uint32_t at = pc;
        settle(pc + 1);
        // Lanes that do not make the call continue after it. Lanes with another target make their
        // call separately.
        if (mask != active) add_strand(mask & ~active, at + 1, frame);
        if (active != callers) add_strand(active & ~callers, at, frame);
        mask = callers;
        leave();
        call(i, site, *callee, callers, &strand, at + 1);
        return;
      }

      case Flow::kReturn: {
        if (active == 0) {
          ++pc;
          continue;
        }
        const uint32_t at = pc;
        settle(pc + 1);
        if (mask != active) add_strand(mask & ~active, at + 1, frame);
        if (frame->caller == nullptr) {
          remove_strand(static_cast<uint32_t>(&strand - strands_));
          return exit_lanes(active, frame);
        }
        copy_results(*frame, active);
        Frame* caller = frame->caller;
        const uint32_t return_pc = frame->return_pc;
        remove_strand(static_cast<uint32_t>(&strand - strands_));
        add_strand(active, return_pc, caller);
        leave_frame(frame, active);
        return;
      }

      case Flow::kExit: {
        if (active == 0) {
          ++pc;
          continue;
        }
        const uint32_t at = pc;
        settle(pc + 1);
        if (mask != active) add_strand(mask & ~active, at + 1, frame);
        remove_strand(static_cast<uint32_t>(&strand - strands_));
        return exit_lanes(active, frame);
      }

      case Flow::kBarrier:
      case Flow::kArrive: {
        if (active == 0) {
          ++pc;
          continue;
        }
        const uint32_t* numbers = x.at<uint32_t>(i.a);
        const uint32_t first = static_cast<uint32_t>(std::countr_zero(active));
        const uint32_t number = numbers[first];
        if (number >= Block::kBarriers) {
          leave();
          return fault(i, first, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                       "the number of a barrier is out of range");
        }
        uint32_t together = 0;
        for (uint32_t l = first; l < kLanes; ++l) {
          if ((active >> l & 1) != 0 && numbers[l] == number) together |= 1u << l;
        }
        uint32_t votes = 0;
        if (static_cast<BarrierReduction>(i.sub) != BarrierReduction::kNone) {
          votes = x.predicate(i.c) ^ ((i.flags & kNegateC) != 0 ? ~0u : 0);
        }
        const bool has_count = (i.flags & kHasCount) != 0;
        const uint32_t count = has_count ? x.at<uint32_t>(i.b)[first] : 0;
        const uint32_t at = pc;
        settle(pc + 1);
        if (i.flow == Flow::kArrive && together == mask) {
          block_.arrive(number, index_, together, has_count, count, votes);
          if (!alone_in_turn) limit = limit_for(strand);  // other strands may have been released
          continue;
        }
        if (mask != active) add_strand(mask & ~active, at + 1, frame);
        if (active != together) add_strand(active & ~together, at, frame);
        mask = together;
        leave();
        if (i.flow == Flow::kBarrier) {
          strand.state = Strand::State::kAtBarrier;
          strand.waits_for = number;
          strand.waits_at = &i;
        }
        block_.arrive(number, index_, together, has_count, count, votes);
        return;
      }

      case Flow::kCollective: {
        if (active == 0) {
          ++pc;
          continue;
        }
        uint32_t done = 0;
        if (collective_now(i, active, &strand, &done)) {
          ++pc;
          continue;
        }
        // Lanes whose partners have not arrived wait; the others continue.
        const uint32_t at = pc;
        settle(pc + 1);
        const uint32_t* members = x.at<uint32_t>(i.e);
        const uint32_t go_on = (mask & ~active) | done;
        uint32_t waiting = active & ~done;
        remove_strand(static_cast<uint32_t>(&strand - strands_));
        if (go_on != 0) add_strand(go_on, at + 1, frame);
        while (waiting != 0) {
          const uint32_t wanted = members[std::countr_zero(waiting)];
          uint32_t together = 0;
          for (uint32_t l = 0; l < kLanes; ++l) {
            if ((waiting >> l & 1) != 0 && members[l] == wanted) together |= 1u << l;
          }
          Strand& waiter = strands_[strand_count_++];
          waiter = Strand();
          waiter.mask = together;
          waiter.pc = at + 1;
          waiter.frame = frame;
          waiter.state = Strand::State::kAtCollective;
          waiter.waits_for = wanted;
          waiter.waits_at = &i;
          waiter.last_turn = turn_;
          waiting &= ~together;
        }
        return check_collectives();
      }

      case Flow::kUnsupported:
        if (active == 0) {
          ++pc;
          continue;
        }
        leave();
        return fault(i, static_cast<uint32_t>(std::countr_zero(active)),
                     CUDA_ERROR_ILLEGAL_INSTRUCTION, "instruction not supported");
    }
  }
}

void Warp::exit_lanes(uint32_t lanes, Frame* frame) {
  live_ &= ~lanes;
  leave_frame(frame, lanes);
  check_collectives();
  block_.lanes_exited(static_cast<uint32_t>(std::popcount(lanes)));
}

void Warp::release(uint32_t barrier, uint32_t popc, bool all, bool any) {
  for (uint32_t k = 0; k < strand_count_; ++k) {
    Strand& s = strands_[k];
    if (s.state != Strand::State::kAtBarrier || s.waits_for != barrier) continue;
    s.state = Strand::State::kRunnable;
    const Instr& i = *s.waits_at;
    std::byte* d = s.frame->registers + i.d.offset_bytes();
    switch (static_cast<BarrierReduction>(i.sub)) {
      case BarrierReduction::kNone:
        break;
      case BarrierReduction::kPopc:
        for (uint32_t rest = s.mask; rest != 0; rest &= rest - 1) {
          std::memcpy(d + sizeof popc * static_cast<uint32_t>(std::countr_zero(rest)), &popc,
                      sizeof popc);
        }
        break;
      case BarrierReduction::kAnd:
      case BarrierReduction::kOr: {
        const bool result =
            static_cast<BarrierReduction>(i.sub) == BarrierReduction::kAnd ? all : any;
        uint32_t p;
        std::memcpy(&p, d, sizeof p);
        p = result ? p | s.mask : p & ~s.mask;
        std::memcpy(d, &p, sizeof p);
        break;
      }
    }
  }
}

void Warp::fault(const Instr& i) {
  const Lanes& x = block_.lanes();
  char text[160];
  if (x.fault_code == CUDA_ERROR_ILLEGAL_ADDRESS || x.fault_code == CUDA_ERROR_MISALIGNED_ADDRESS ||
      x.fault_code == CUDA_ERROR_INVALID_ADDRESS_SPACE) {
    std::snprintf(text, sizeof text, "%s 0x%llx", x.fault_reason,
                  static_cast<unsigned long long>(x.fault_address));
  } else {
    std::snprintf(text, sizeof text, "%s", x.fault_reason);
  }
  faulted_ = true;
  block_.set_fault(x.fault_code, index_, x.fault_lane, i.line, text);
}

void Warp::fault(const Instr& i, uint32_t lane, CUresult code, const char* reason) {
  faulted_ = true;
  block_.set_fault(code, index_, lane, i.line, reason);
}

}  // namespace softgpu::exec
