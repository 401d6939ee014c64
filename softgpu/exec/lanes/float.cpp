// f32 and f64 arithmetic. Results are correctly rounded (IEEE 754) in every rounding mode.
#include <cmath>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

struct Add {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b, T c) {
    if constexpr (sizeof(T) == 4) return __builtin_fmaf(a, b, c);
    return __builtin_fma(a, b, c);
  }
};
struct Sqrt {
  template <class T>
  SOFTGPU_INLINE static T apply(T a) {
    if constexpr (sizeof(T) == 4) return __builtin_sqrtf(a);
    return __builtin_sqrt(a);
  }
};
struct Rcp {
  template <class T>
  SOFTGPU_INLINE static T apply(T a) {
    return T{1} / a;
  }
};
template <bool kMax, bool kNan, bool kXorsign>
struct MinMax {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b) {
    if constexpr (kXorsign) {
      const uint32_t sign = (bits_to<uint32_t>(a) ^ bits_to<uint32_t>(b)) & 0x80000000;
      const T r = min_max<kMax, kNan, T>(bits_to<T>(bits_to<uint32_t>(a) & 0x7fffffff),
                                         bits_to<T>(bits_to<uint32_t>(b) & 0x7fffffff));
      return bits_to<T>(r != r ? 0x7fffffffu : bits_to<uint32_t>(r) | sign);
    } else {
      return min_max<kMax, kNan, T>(a, b);
    }
  }
};
template <bool kMax, bool kNan>
struct MinMax3 {
  template <class T>
  SOFTGPU_INLINE static T apply(T a, T b, T c) {
    return min_max<kMax, kNan, T>(min_max<kMax, kNan, T>(a, b), c);
  }
};
// Abs and Neg leave a NaN unchanged; compute() makes the NaNs of f32 canonical.
struct Abs {
  template <class T>
  SOFTGPU_INLINE static T apply(T a) {
    const T magnitude = sizeof(T) == 4 ? static_cast<T>(__builtin_fabsf(static_cast<float>(a)))
                                       : static_cast<T>(__builtin_fabs(a));
    return a != a ? a : magnitude;
  }
};
struct Neg {
  template <class T>
  SOFTGPU_INLINE static T apply(T a) {
    return a != a ? a : -a;
  }
};
// Changes only the sign bit: does not flush subnormal numbers or quieten NaNs.
struct Copysign {
  template <class T>
  SOFTGPU_INLINE static T apply(T sign, T magnitude) {
    constexpr T kSign = T{1} << (8 * sizeof(T) - 1);
    return (magnitude & ~kSign) | (sign & kSign);
  }
};

template <class Op, int kOperands, class T>
SOFTGPU_INLINE T apply(T a, T b, T c) {
  if constexpr (kOperands == 1) return Op::apply(a);
  if constexpr (kOperands == 2) return Op::apply(a, b);
  if constexpr (kOperands == 3) return Op::apply(a, b, c);
}

// Operations whose exact result may be below the smallest normal number and still round to that
// number, because subnormal numbers have wide steps. This cannot happen with other operations: sums
// are exact near that number, no root is so small, and no reciprocal is so close to it (with
// rounding to nearest).
template <class Op>
inline constexpr bool kMayBecomeNormal = false;
template <>
inline constexpr bool kMayBecomeNormal<Mul> = true;
template <>
inline constexpr bool kMayBecomeNormal<Fma> = true;
template <>
inline constexpr bool kMayBecomeNormal<Div> = true;

// Applies Op with .ftz. A result is flushed if it is subnormal after rounding to 24 bits, not to
// the spacing of subnormal numbers. To find the result that is rounded to 24 bits, the operation is
// repeated with a and c scaled by 2^32. If the result is near the subnormal numbers, the scaled
// operation does not overflow.
template <class Op, int kOperands>
SOFTGPU_INLINE float apply_flushing(float a, float b, float c) {
  const float result = apply<Op, kOperands>(a, b, c);
  if constexpr (!kMayBecomeNormal<Op>) return flush(result);
  const float higher = apply<Op, kOperands>(a * 0x1p32f, b, c * 0x1p32f);
  const bool is_subnormal =
      __builtin_fabsf(result) <= 0x1p-126f && __builtin_fabsf(higher) < 0x1p-94f;
  const uint32_t bits = bits_to<uint32_t>(result);
  return bits_to<float>(is_subnormal ? bits & 0x80000000 : bits);
}

// Uses the rounding mode of the interpreting thread, which is to nearest (numeric.h). For the other
// modes, directed() changes it with a RoundingScope.
template <class Op, int kOperands, class T, bool kFtz, bool kSat>
SOFTGPU_INLINE void compute(Lanes& x, const Instr& i) {
  const T* a = x.at<T>(i.a);
  const T* b = x.at<T>(kOperands > 1 ? i.b : i.a);
  const T* c = x.at<T>(kOperands > 2 ? i.c : i.a);
  store_lanes(x.at<T>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    T result;
    if constexpr (kFtz) {
      result = apply_flushing<Op, kOperands>(flush(a[l]), flush(b[l]), flush(c[l]));
    } else {
      result = apply<Op, kOperands>(a[l], b[l], c[l]);
    }
    return kSat ? saturate(result) : canonical(result);
  });
}
template <class Op, int kOperands, class T, bool kFtz, bool kSat>
void nearest(Lanes& x, const Instr& i) {
  compute<Op, kOperands, T, kFtz, kSat>(x, i);
}
template <class Op, int kOperands, class T, bool kFtz, bool kSat>
void directed(Lanes& x, const Instr& i) {
  const RoundingScope scope(static_cast<Rounding>(i.sub));
  compute<Op, kOperands, T, kFtz, kSat>(x, i);
}

template <class Op, int kOperands>
Handler arithmetic(const Form& form) {
  const bool rounded = form.rounding != Rounding::kNone && form.rounding != Rounding::kNearest;
#define SOFTGPU_PICK(T, FTZ, SAT) \
  (rounded ? directed<Op, kOperands, T, FTZ, SAT> : nearest<Op, kOperands, T, FTZ, SAT>)
  if (form.type == Type::kF64) return SOFTGPU_PICK(double, false, false);
  if (form.type != Type::kF32) return nullptr;
  if (form.ftz)
    return form.saturate ? SOFTGPU_PICK(float, true, true) : SOFTGPU_PICK(float, true, false);
  return form.saturate ? SOFTGPU_PICK(float, false, true) : SOFTGPU_PICK(float, false, false);
#undef SOFTGPU_PICK
}

// Division and square root have no .sat.
template <class Op, int kOperands>
Handler division(const Form& form) {
  const bool rounded = form.rounding != Rounding::kNone && form.rounding != Rounding::kNearest;
  if (form.type == Type::kF64) {
    return rounded ? directed<Op, kOperands, double, false, false>
                   : nearest<Op, kOperands, double, false, false>;
  }
  if (form.ftz) {
    return rounded ? directed<Op, kOperands, float, true, false>
                   : nearest<Op, kOperands, float, true, false>;
  }
  return rounded ? directed<Op, kOperands, float, false, false>
                 : nearest<Op, kOperands, float, false, false>;
}

template <class Op>
Handler selection(const Form& form) {
  if (form.type == Type::kF64) return nearest<Op, 2, double, false, false>;
  return form.ftz ? nearest<Op, 2, float, true, false> : nearest<Op, 2, float, false, false>;
}
template <bool kMax>
Handler find_min_max(const Form& form) {
  if (form.elements == 3) {
    if (form.nan)
      return form.ftz ? nearest<MinMax3<kMax, true>, 3, float, true, false>
                      : nearest<MinMax3<kMax, true>, 3, float, false, false>;
    return form.ftz ? nearest<MinMax3<kMax, false>, 3, float, true, false>
                    : nearest<MinMax3<kMax, false>, 3, float, false, false>;
  }
  if (form.type == Type::kF64) return nearest<MinMax<kMax, false, false>, 2, double, false, false>;
  if (form.xorsign_abs) {
    if (form.nan)
      return form.ftz ? nearest<MinMax<kMax, true, true>, 2, float, true, false>
                      : nearest<MinMax<kMax, true, true>, 2, float, false, false>;
    return form.ftz ? nearest<MinMax<kMax, false, true>, 2, float, true, false>
                    : nearest<MinMax<kMax, false, true>, 2, float, false, false>;
  }
  return form.nan ? selection<MinMax<kMax, true, false>>(form)
                  : selection<MinMax<kMax, false, false>>(form);
}
// abs and neg change the sign bit of numbers. A NaN of f32 becomes canonical; a NaN of f64 stays
// unchanged.
template <class Op>
Handler sign_change(const Form& form) {
  if (form.type == Type::kF64) return nearest<Op, 1, double, false, false>;
  return form.ftz ? nearest<Op, 1, float, true, false> : nearest<Op, 1, float, false, false>;
}

// testp.{finite, infinite, number, notanumber, normal, subnormal}: i.sub is the index in this list.
// Zeros count as normal.
template <class T, class U>
void testp(Lanes& x, const Instr& i) {
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr U kExponent = ((U{1} << (8 * sizeof(U) - 1 - kMantissa)) - 1) << kMantissa;
  const U* a = x.at<U>(i.a);
  const uint8_t which = i.sub;
  x.set_predicate(i.d, test_lanes([=](uint32_t l) SOFTGPU_LAMBDA {
                    const U magnitude = static_cast<U>(a[l] << 1) >> 1;
                    switch (which) {
                      case 0:
                        return magnitude < kExponent;
                      case 1:
                        return magnitude == kExponent;
                      case 2:
                        return magnitude <= kExponent;
                      case 3:
                        return magnitude > kExponent;
                      case 4:
                        return magnitude < kExponent &&
                               (magnitude == 0 || magnitude >= U{1} << kMantissa);
                      default:
                        return magnitude != 0 && magnitude < U{1} << kMantissa;
                    }
                  }));
}

}  // namespace

Handler find_float(const Form& form) {
  switch (form.op) {
    case Op::kAdd:
      return arithmetic<Add, 2>(form);
    case Op::kSub:
      return arithmetic<Sub, 2>(form);
    case Op::kMul:
      return arithmetic<Mul, 2>(form);
    case Op::kFma:
      return arithmetic<Fma, 3>(form);
    case Op::kDiv:
      return form.approximate || form.full_range ? nullptr : division<Div, 2>(form);
    case Op::kRcp:
      return form.approximate ? nullptr : division<Rcp, 1>(form);
    case Op::kSqrt:
      return form.approximate ? nullptr : division<Sqrt, 1>(form);
    case Op::kMin:
      return find_min_max<false>(form);
    case Op::kMax:
      return find_min_max<true>(form);
    case Op::kAbs:
      return sign_change<Abs>(form);
    case Op::kNeg:
      return sign_change<Neg>(form);
    case Op::kCopysign:
      return form.type == Type::kF64 ? binary<Copysign, uint64_t> : binary<Copysign, uint32_t>;
    case Op::kTestp:
      return form.type == Type::kF64 ? testp<double, uint64_t> : testp<float, uint32_t>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
