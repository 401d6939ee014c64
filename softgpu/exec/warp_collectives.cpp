// Warp collectives. Lanes that name the same members meet, wherever each lane is in the code, if
// they execute the same operation. A collective does not wait for lanes that have exited.
#include <bit>
#include <cstring>

#include "softgpu/exec/block.h"
#include "softgpu/exec/warp.h"

namespace softgpu::exec {

void Warp::gather(const Instr& i, uint32_t lanes, Frame* frame, CollectiveOperands* in) {
  const std::byte* const banks[kBanks] = {frame->registers, frame->function->constants.data.get(),
                                          special_.data.get()};
  const auto words = [&](Slot slot) {
    return reinterpret_cast<const uint32_t*>(banks[slot.bank()] + slot.offset_bytes());
  };
  const auto kind = static_cast<Collective>(i.sub);
  if (is_vote(kind)) {
    const uint32_t votes = *words(i.a) ^ ((i.flags & kNegateA) != 0 ? ~0u : 0);
    in->votes = (in->votes & ~lanes) | (votes & lanes);
    return;
  }
  if (kind == Collective::kSyncWarp || kind == Collective::kElect) return;
  const uint32_t* a = words(i.a);
  const auto* wide = reinterpret_cast<const uint64_t*>(a);
  const uint32_t* b = words(i.b);
  const uint32_t* c = words(i.c);
  const bool is_wide = reads_64_bits(kind);
  const bool all = is_shuffle(kind);
  for (uint32_t l = 0; l < kLanes; ++l) {
    if ((lanes >> l & 1) == 0) continue;
    in->a[l] = is_wide ? wide[l] : a[l];
    if (all) in->b[l] = b[l], in->c[l] = c[l];
  }
}

void Warp::scatter(const Instr& i, uint32_t lanes, Frame* frame, const CollectiveResult& result) {
  const auto kind = static_cast<Collective>(i.sub);
  if (kind == Collective::kSyncWarp) return;
  const auto set_predicate = [&](Slot slot) {
    uint32_t p;
    std::memcpy(&p, frame->registers + slot.offset_bytes(), sizeof p);
    p = (p & ~lanes) | (result.predicate & lanes);
    std::memcpy(frame->registers + slot.offset_bytes(), &p, sizeof p);
  };
  if (gives_predicate(kind)) return set_predicate(i.d);
  auto* d = reinterpret_cast<uint32_t*>(frame->registers + i.d.offset_bytes());
  for (uint32_t l = 0; l < kLanes; ++l) {
    if ((lanes >> l & 1) != 0) d[l] = result.value[l];
  }
  if (is_shuffle(kind) || kind == Collective::kElect || kind == Collective::kMatchAll32 ||
      kind == Collective::kMatchAll64) {
    set_predicate(i.d2);
  }
}

// Executes the collective for the active lanes whose partners are all active, and adds these lanes
// to *done. Returns true if no active lane is left to execute it.
bool Warp::collective_now(const Instr& i, uint32_t active, Strand* strand, uint32_t* done) {
  const uint32_t* members = block_.lanes().at<uint32_t>(i.e);
  for (uint32_t rest = active; rest != 0;) {
    const uint32_t wanted = members[std::countr_zero(rest)];
    uint32_t together = 0;
    for (uint32_t l = 0; l < kLanes; ++l) {
      if ((active >> l & 1) != 0 && members[l] == wanted) together |= 1u << l;
    }
    rest &= ~together;
    const uint32_t needed = (i.flags & kActiveLanes) != 0 ? together : wanted & live_;
    if ((together & needed) != needed) continue;
    CollectiveOperands in{};
    CollectiveResult out{};
    gather(i, together, strand->frame, &in);
    compute(static_cast<Collective>(i.sub), together, in, &out);
    scatter(i, together, strand->frame, out);
    *done |= together;
  }
  return *done == active;
}

// Releases the waiting strands whose partners have all arrived.
void Warp::check_collectives() {
  const auto same = [](const Strand& a, const Strand& b) {
    return b.state == Strand::State::kAtCollective && a.waits_for == b.waits_for &&
           a.waits_at->sub == b.waits_at->sub;
  };
  for (uint32_t k = 0; k < strand_count_; ++k) {
    if (strands_[k].state != Strand::State::kAtCollective) continue;
    const Strand first = strands_[k];
    uint32_t present = 0;
    for (uint32_t j = 0; j < strand_count_; ++j) {
      if (same(first, strands_[j])) present |= strands_[j].mask;
    }
    const uint32_t needed = first.waits_for & live_;
    if ((present & needed) != needed) continue;
    CollectiveOperands in{};
    CollectiveResult out{};
    for (uint32_t j = 0; j < strand_count_; ++j) {
      if (same(first, strands_[j]))
        gather(*strands_[j].waits_at, strands_[j].mask, strands_[j].frame, &in);
    }
    compute(static_cast<Collective>(first.waits_at->sub), present, in, &out);
    for (uint32_t j = 0; j < strand_count_; ++j) {
      Strand& s = strands_[j];
      if (!same(first, s)) continue;
      scatter(*s.waits_at, s.mask, s.frame, out);
      s.state = Strand::State::kRunnable;
    }
  }
}

}  // namespace softgpu::exec
