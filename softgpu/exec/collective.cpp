#include "softgpu/exec/collective.h"

#include <algorithm>
#include <bit>

namespace softgpu::exec {
namespace {

template <class F>
void for_each_lane(uint32_t lanes, F f) {
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    f(static_cast<uint32_t>(std::countr_zero(rest)));
}

void set_all(CollectiveResult* out, uint32_t value) { std::fill_n(out->value, kLanes, value); }

// c holds the segment mask in bits 8-12 and the clamp lane in bits 0-4.
void shuffle(Collective kind, const CollectiveOperands& in, CollectiveResult* out) {
  out->predicate = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t segment = in.c[l] >> 8 & 31;
    const uint32_t clamp = in.c[l] & 31;
    const int32_t highest = static_cast<int32_t>((l & segment) | (clamp & ~segment));
    const uint32_t lowest = l & segment;
    const uint32_t b = in.b[l] & 31;
    int32_t from = 0;
    bool in_range = false;
    switch (kind) {
      case Collective::kShuffleUp:
        from = static_cast<int32_t>(l) - static_cast<int32_t>(b);
        in_range = from >= highest;
        break;
      case Collective::kShuffleDown:
        from = static_cast<int32_t>(l + b);
        in_range = from <= highest;
        break;
      case Collective::kShuffleButterfly:
        from = static_cast<int32_t>(l ^ b);
        in_range = from <= highest;
        break;
      default:
        from = static_cast<int32_t>(lowest | (b & ~segment));
        in_range = from <= highest;
        break;
    }
    if (!in_range) from = static_cast<int32_t>(l);
    out->predicate |= static_cast<uint32_t>(in_range) << l;
    out->value[l] = static_cast<uint32_t>(in.a[from & 31]);
  }
}

void match(bool all, uint32_t lanes, const CollectiveOperands& in, CollectiveResult* out) {
  const uint64_t first = in.a[std::countr_zero(lanes)];
  bool equal = true;
  for_each_lane(lanes, [&](uint32_t l) {
    uint32_t same = 0;
    for_each_lane(lanes,
                  [&](uint32_t k) { same |= static_cast<uint32_t>(in.a[k] == in.a[l]) << k; });
    out->value[l] = same;
    equal = equal && in.a[l] == first;
  });
  if (all) {
    set_all(out, equal ? lanes : 0);
    out->predicate = equal ? kFullMask : 0;
  }
}

template <class F>
void reduce(uint32_t lanes, const CollectiveOperands& in, CollectiveResult* out, F f) {
  const uint32_t first = static_cast<uint32_t>(std::countr_zero(lanes));
  auto total = static_cast<uint32_t>(in.a[first]);
  for_each_lane(lanes & (lanes - 1),
                [&](uint32_t l) { total = f(total, static_cast<uint32_t>(in.a[l])); });
  set_all(out, total);
}

}  // namespace

void compute(Collective kind, uint32_t lanes, const CollectiveOperands& in, CollectiveResult* out) {
  const uint32_t votes = in.votes & lanes;
  const auto as_signed = [](uint32_t v) { return static_cast<int32_t>(v); };
  switch (kind) {
    case Collective::kSyncWarp:
      return;
    case Collective::kVoteAll:
      out->predicate = votes == lanes ? kFullMask : 0;
      return;
    case Collective::kVoteAny:
      out->predicate = votes != 0 ? kFullMask : 0;
      return;
    case Collective::kVoteUni:
      out->predicate = votes == lanes || votes == 0 ? kFullMask : 0;
      return;
    case Collective::kBallot:
      return set_all(out, votes);
    case Collective::kShuffleUp:
    case Collective::kShuffleDown:
    case Collective::kShuffleButterfly:
    case Collective::kShuffleIndex:
      return shuffle(kind, in, out);
    case Collective::kMatchAny32:
    case Collective::kMatchAny64:
      return match(false, lanes, in, out);
    case Collective::kMatchAll32:
    case Collective::kMatchAll64:
      return match(true, lanes, in, out);
    case Collective::kReduceAdd:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return a + b; });
    case Collective::kReduceMinU:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return std::min(a, b); });
    case Collective::kReduceMaxU:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return std::max(a, b); });
    case Collective::kReduceMinS:
      return reduce(lanes, in, out,
                    [&](uint32_t a, uint32_t b) { return as_signed(a) < as_signed(b) ? a : b; });
    case Collective::kReduceMaxS:
      return reduce(lanes, in, out,
                    [&](uint32_t a, uint32_t b) { return as_signed(a) > as_signed(b) ? a : b; });
    case Collective::kReduceAnd:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return a & b; });
    case Collective::kReduceOr:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return a | b; });
    case Collective::kReduceXor:
      return reduce(lanes, in, out, [](uint32_t a, uint32_t b) { return a ^ b; });
    case Collective::kElect: {
      const uint32_t leader = static_cast<uint32_t>(std::countr_zero(lanes));
      set_all(out, leader);
      out->predicate = 1u << leader;
      return;
    }
  }
}

}  // namespace softgpu::exec
