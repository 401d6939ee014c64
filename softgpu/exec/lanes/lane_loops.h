// Loops over the 32 lanes of a warp, written so that the compiler turns them into vector code.
//
// Release builds compile the handlers of this folder twice, for baseline x86-64 and for x86-64-v3,
// each into its own namespace (SOFTGPU_ISA). exec/instruction_sets.cpp chooses one at the first
// decode. So everything in this folder's headers must be inlined or in that namespace: the linker
// could otherwise choose the AVX2 code of an inline function for the baseline too.
#pragma once

#include <cstdint>

#include <emmintrin.h>

#include "softgpu/exec/form.h"
#include "softgpu/exec/lanes.h"

#ifndef SOFTGPU_ISA
#error "compile with -DSOFTGPU_ISA=<namespace>"
#endif

namespace softgpu::exec::SOFTGPU_ISA {

struct Wide128 {
  uint64_t low, high;
};

alignas(64) static constexpr uint32_t kBit[kLanes] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

// Operands are either the same register or do not overlap, so lanes are independent.
#define SOFTGPU_LAMBDA __attribute__((always_inline))
#define SOFTGPU_LANE_LOOP _Pragma("GCC ivdep") for (uint32_t l = 0; l < kLanes; ++l)

// d[l] = f(l) for the active lanes. f has no side effects, so it may also be computed for inactive
// lanes.
template <class D, class F>
SOFTGPU_INLINE void store_lanes(D* d, uint32_t mask, F f) {
  if (mask == kFullMask) {
    SOFTGPU_LANE_LOOP d[l] = f(l);
  } else {
    SOFTGPU_LANE_LOOP {
      const D value = f(l);
      d[l] = (mask & kBit[l]) != 0 ? value : d[l];
    }
  }
}

// For operations that must not run on inactive lanes' operands (division), or are expensive.
template <class D, class F>
SOFTGPU_INLINE void store_active_lanes(D* d, uint32_t mask, F f) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    d[l] = f(l);
  }
}

// The signs of 32 words, a bit per lane.
SOFTGPU_INLINE uint32_t pack_signs(const int32_t* words) {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < kLanes; i += 4) {
    const __m128i four = _mm_load_si128(reinterpret_cast<const __m128i*>(words + i));
    bits |= static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(four))) << i;
  }
  return bits;
}

// A bit for every lane, active or not, for which f(l) is true.
template <class F>
SOFTGPU_INLINE uint32_t test_lanes(F f) {
  alignas(64) int32_t words[kLanes];
  SOFTGPU_LANE_LOOP words[l] = f(l) ? -1 : 0;
  return pack_signs(words);
}

// Handlers of the usual shapes: Op::apply over whole registers.
template <class Op, class D, class A = D>
void unary(Lanes& x, const Instr& i) {
  const A* a = x.at<A>(i.a);
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return Op::template apply<D>(a[l]); });
}

template <class Op, class D, class A = D, class B = A>
void binary(Lanes& x, const Instr& i) {
  const A* a = x.at<A>(i.a);
  const B* b = x.at<B>(i.b);
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return Op::template apply<D>(a[l], b[l]); });
}

template <class Op, class D, class A = D, class B = A, class C = D>
void ternary(Lanes& x, const Instr& i) {
  const A* a = x.at<A>(i.a);
  const B* b = x.at<B>(i.b);
  const C* c = x.at<C>(i.c);
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return Op::template apply<D>(a[l], b[l], c[l]); });
}

}  // namespace softgpu::exec::SOFTGPU_ISA
