// Floating point as defined by PTX: flushing, canonical NaNs, rounding modes, small formats.
//
// Where PTX leaves a choice, this follows an H200 (docs/softgpu.md). Interpreting threads round
// to nearest, and do not flush subnormal numbers. Only a RoundingScope changes the rounding mode,
// and restores it before the handler ends.
#pragma once

#include <bit>
#include <cfenv>
#include <cstdint>

#include "softgpu/exec/lanes/lane_loops.h"

namespace softgpu::exec::SOFTGPU_ISA {

template <class To, class From>
SOFTGPU_INLINE To bits_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// .ftz: subnormals become zeros of the same sign.
SOFTGPU_INLINE float flush(float v) {
  const uint32_t bits = bits_to<uint32_t>(v);
  return bits_to<float>((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

// Whether .ftz flushes a value that becomes an f32. The value is first rounded to 24 bits, not to
// the spacing of subnormal numbers; .ftz flushes it if the rounded value is subnormal.
SOFTGPU_INLINE bool becomes_subnormal(double v, Rounding rounding) {
  const double magnitude = __builtin_fabs(v);
  if (rounding == (v < 0 ? Rounding::kDown : Rounding::kUp))  // away from zero
    return magnitude <= 0x1p-126 * (1 - 0x1p-24);
  const bool nearest = rounding == Rounding::kNone || rounding == Rounding::kNearest;
  return magnitude < (nearest ? 0x1p-126 * (1 - 0x1p-25) : 0x1p-126);
}

// Every f32 operation that yields a NaN yields this NaN. Operations on f64 keep payloads.
SOFTGPU_INLINE float canonical(float v) {
  return bits_to<float>(v != v ? 0x7fffffffu : bits_to<uint32_t>(v));
}
SOFTGPU_INLINE double canonical(double v) { return v; }

// .sat: clamps to [0, 1]; NaN gives +0.
template <class T>
SOFTGPU_INLINE T saturate(T v) {
  v = v > T{0} ? v : T{0};
  return v < T{1} ? v : T{1};
}

// Sets the rounding mode of the scalar and vector units for the lanes of one instruction. The
// barriers keep the compiler from moving loads and stores of a lane loop, and so its arithmetic,
// out of the scope.
class RoundingScope {
 public:
  explicit SOFTGPU_INLINE RoundingScope(Rounding rounding) {
    std::fesetround(rounding == Rounding::kZero   ? FE_TOWARDZERO
                    : rounding == Rounding::kDown ? FE_DOWNWARD
                    : rounding == Rounding::kUp   ? FE_UPWARD
                                                  : FE_TONEAREST);
    asm volatile("" ::: "memory");
  }
  SOFTGPU_INLINE ~RoundingScope() {
    asm volatile("" ::: "memory");
    std::fesetround(FE_TONEAREST);
  }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;
};

SOFTGPU_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = normal + (112u << 23);
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  uint32_t bits = magnitude >= 0x7c00 ? special : normal;
  bits = magnitude < 0x400 ? bits_to<uint32_t>(subnormal) : bits;
  return bits_to<float>(bits | sign);
}
SOFTGPU_INLINE float bf16_to_float(uint16_t v) {
  return bits_to<float>(static_cast<uint32_t>(v) << 16);
}

// A floating-point format of at most 32 bits, stored in the low bits of a word.
struct SmallFormat {
  int mantissa_bits;
  int exponent_bits;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};
inline constexpr SmallFormat kHalf{10, 5};
inline constexpr SmallFormat kBf16{7, 8};
inline constexpr uint16_t kSmallNan = 0x7fff;  // canonical NaN of f16 and bf16

// Rounds a double to a smaller format. The result is correctly rounded, because it is rounded only
// once. NaN gives `nan`.
template <SmallFormat kFormat>
SOFTGPU_INLINE uint32_t round_to(double value, Rounding rounding, uint32_t nan = kSmallNan) {
  constexpr int kMantissa = kFormat.mantissa_bits;
  constexpr int kMinExponent = 1 - kFormat.bias();
  const uint64_t bits = bits_to<uint64_t>(value);
  const bool negative = bits >> 63 != 0;
  const uint32_t sign = static_cast<uint32_t>(negative)
                        << (kFormat.mantissa_bits + kFormat.exponent_bits);
  if (value != value) return nan;
  if (value == 0) return sign;
  const int biased = static_cast<int>(bits >> 52) & 0x7ff;
  if (biased == 0x7ff) return sign | kFormat.infinity();
  const uint64_t fraction = bits & 0xfffffffffffff;
  const uint64_t significand = biased == 0 ? fraction : fraction | uint64_t{1} << 52;
  const int exponent = biased == 0 ? -1022 : biased - 1023;
  int shift = 52 - kMantissa;
  if (exponent < kMinExponent) shift += kMinExponent - exponent;
  if (shift > 62) shift = 62;
  uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  bool up = false;
  switch (rounding) {
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = negative && rest != 0;
      break;
    case Rounding::kUp:
      up = !negative && rest != 0;
      break;
    case Rounding::kNearestAway:
      up = rest >= half;
      break;
    default:
      up = rest > half || (rest == half && (kept & 1) != 0);
      break;
  }
  kept += up ? 1 : 0;
  uint64_t result = kept;  // a carry out of the significand increments the exponent
  if (exponent >= kMinExponent) {
    result += static_cast<uint64_t>(exponent - kMinExponent) << kMantissa;
  }
  if (result >= kFormat.infinity()) {
    const bool to_infinity = rounding == Rounding::kNone || rounding == Rounding::kNearest ||
                             rounding == Rounding::kNearestAway ||
                             (rounding == Rounding::kDown && negative) ||
                             (rounding == Rounding::kUp && !negative);
    result = to_infinity ? kFormat.infinity() : kFormat.infinity() - 1;
  }
  return sign | static_cast<uint32_t>(result);
}
SOFTGPU_INLINE uint16_t to_half(double v, Rounding rounding = Rounding::kNearest) {
  return static_cast<uint16_t>(round_to<kHalf>(v, rounding));
}
SOFTGPU_INLINE uint16_t to_bf16(double v, Rounding rounding = Rounding::kNearest) {
  return static_cast<uint16_t>(round_to<kBf16>(v, rounding));
}

// a * b + c for operands of 16-bit formats. Rounding the result to a 16-bit format gives the
// correctly rounded value, because the product is exact and the sum is rounded to odd.
SOFTGPU_INLINE double fma_to_odd(double a, double b, double c) {
  const double product = a * b;
  const double sum = product + c;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (c - back);
  const uint64_t bits = bits_to<uint64_t>(sum);
  if (error == 0 || error != error || (bits & 1) != 0) return sum;
  // Step towards the error: away from zero if it has the sign of the sum.
  return bits_to<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// min and max of PTX: a number wins over a NaN (or, with .NaN, the NaN wins); -0 is less than +0.
template <bool kMax, bool kNan, class T>
SOFTGPU_INLINE T min_max(T a, T b) {
  const bool a_nan = a != a;
  const bool b_nan = b != b;
  // Equal operands can differ only in the sign of zero.
  const bool a_negative = __builtin_signbit(a) != 0;
  const bool take_a = kMax ? (a > b || (a == b && !a_negative)) : (a < b || (a == b && a_negative));
  T result = take_a ? a : b;
  if constexpr (kNan) {
    result = a_nan ? a : b_nan ? b : result;
  } else {
    result = a_nan ? b : b_nan ? a : result;
  }
  return result;
}

}  // namespace softgpu::exec::SOFTGPU_ISA
