// f16, bf16 and their packed pairs. Operands are widened to f64. There, products are exact, sums
// are exact unless one operand is too small to affect the result, and fma is rounded to odd
// (numeric.h). So one rounding to the format gives the correctly rounded result.
#include <cmath>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

// With .ftz, hardware rounds the exact result to the format's precision, as if exponents had no
// lower limit. It flushes the result if this rounded value is below the smallest normal number,
// that is, if the exact result is below kTiny.
struct F16 {
  static constexpr uint16_t kExponent = 0x7c00;
  static constexpr double kTiny = 0x1p-14 * (1 - 0x1p-12);
  SOFTGPU_INLINE static double read(uint16_t v) { return half_to_float(v); }
  SOFTGPU_INLINE static uint16_t write(double v) { return to_half(v); }
};
struct Bf16 {
  static constexpr uint16_t kExponent = 0x7f80;
  static constexpr double kTiny = 0x1p-126 * (1 - 0x1p-9);
  SOFTGPU_INLINE static double read(uint16_t v) { return bf16_to_float(v); }
  SOFTGPU_INLINE static uint16_t write(double v) { return to_bf16(v); }
};

// The modifiers of an instruction, as bits of Instr::sub.
enum Option : uint8_t { kFtz = 1, kSat = 2, kRelu = 4 };

template <class Format>
SOFTGPU_INLINE uint16_t flush_small(uint16_t v) {
  return (v & Format::kExponent) == 0 ? v & 0x8000 : v;
}

struct Add {
  SOFTGPU_INLINE static double apply(double a, double b, double) { return a + b; }
};
struct Sub {
  SOFTGPU_INLINE static double apply(double a, double b, double) { return a - b; }
};
struct Mul {
  SOFTGPU_INLINE static double apply(double a, double b, double) { return a * b; }
};
struct Fma {
  SOFTGPU_INLINE static double apply(double a, double b, double c) { return fma_to_odd(a, b, c); }
};
struct Ex2 {
  SOFTGPU_INLINE static double apply(double a, double, double) { return __builtin_exp2(a); }
};
struct Tanh {
  SOFTGPU_INLINE static double apply(double a, double, double) { return __builtin_tanh(a); }
};
template <bool kMax, bool kNan, bool kXorsign>
struct MinMax {
  SOFTGPU_INLINE static double apply(double a, double b, double) {
    if constexpr (kXorsign) {
      const bool negative = (__builtin_signbit(a) != 0) != (__builtin_signbit(b) != 0);
      const double r = min_max<kMax, kNan>(__builtin_fabs(a), __builtin_fabs(b));
      return negative ? -r : r;
    }
    return min_max<kMax, kNan>(a, b);
  }
};

template <class Format, class Op>
SOFTGPU_INLINE uint16_t element(uint16_t a, uint16_t b, uint16_t c, uint8_t options) {
  if ((options & kFtz) != 0) {
    a = flush_small<Format>(a);
    b = flush_small<Format>(b);
    c = flush_small<Format>(c);
  }
  const double exact = Op::apply(Format::read(a), Format::read(b), Format::read(c));
  uint16_t r = Format::write(exact);
  if ((options & kFtz) != 0 && __builtin_fabs(exact) < Format::kTiny) r &= 0x8000;
  if ((options & kSat) != 0) r = Format::write(saturate(Format::read(r)));
  if ((options & kRelu) != 0 && (r & 0x8000) != 0) r = 0;
  return r;
}

template <class Format, class Op, bool kPair>
void small(Lanes& x, const Instr& i) {
  const uint8_t options = i.sub;
  if constexpr (kPair) {
    const uint32_t* a = x.at<uint32_t>(i.a);
    const uint32_t* b = x.at<uint32_t>(i.b);
    const uint32_t* c = x.at<uint32_t>(i.c);
    store_active_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
      uint32_t pair = 0;
      for (uint32_t k = 0; k < 32; k += 16) {
        pair |= uint32_t{element<Format, Op>(static_cast<uint16_t>(a[l] >> k),
                                             static_cast<uint16_t>(b[l] >> k),
                                             static_cast<uint16_t>(c[l] >> k), options)}
                << k;
      }
      return pair;
    });
  } else {
    const uint16_t* a = x.at<uint16_t>(i.a);
    const uint16_t* b = x.at<uint16_t>(i.b);
    const uint16_t* c = x.at<uint16_t>(i.c);
    store_active_lanes(x.at<uint16_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
      return element<Format, Op>(a[l], b[l], c[l], options);
    });
  }
}

// neg and abs change only the sign bits, after the flush. A NaN becomes kSmallNan.
template <bool kNeg, class Format>
SOFTGPU_INLINE uint16_t change_sign(uint32_t element, bool ftz) {
  auto v = static_cast<uint16_t>(element);
  if (ftz) v = flush_small<Format>(v);
  const uint16_t changed = kNeg ? v ^ 0x8000 : v & 0x7fff;
  return (v & 0x7fff) > Format::kExponent ? kSmallNan : changed;
}
template <bool kNeg, class T, class Format>
void sign(Lanes& x, const Instr& i) {
  const T* a = x.at<T>(i.a);
  const bool ftz = (i.sub & kFtz) != 0;
  store_lanes(x.at<T>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    uint32_t result = change_sign<kNeg, Format>(a[l], ftz);
    if constexpr (sizeof(T) == 4) result |= change_sign<kNeg, Format>(a[l] >> 16, ftz) << 16;
    return static_cast<T>(result);
  });
}

template <class Op>
Handler by_format(Type type) {
  switch (type) {
    case Type::kF16:
      return small<F16, Op, false>;
    case Type::kF16x2:
      return small<F16, Op, true>;
    case Type::kBf16:
      return small<Bf16, Op, false>;
    case Type::kBf16x2:
      return small<Bf16, Op, true>;
    default:
      return nullptr;
  }
}
template <bool kNeg>
Handler sign_by_format(Type type) {
  switch (type) {
    case Type::kF16:
      return sign<kNeg, uint16_t, F16>;
    case Type::kF16x2:
      return sign<kNeg, uint32_t, F16>;
    case Type::kBf16:
      return sign<kNeg, uint16_t, Bf16>;
    case Type::kBf16x2:
      return sign<kNeg, uint32_t, Bf16>;
    default:
      return nullptr;
  }
}
template <bool kMax>
Handler find_min_max(const Form& form) {
  if (form.xorsign_abs) {
    return form.nan ? by_format<MinMax<kMax, true, true>>(form.type)
                    : by_format<MinMax<kMax, false, true>>(form.type);
  }
  return form.nan ? by_format<MinMax<kMax, true, false>>(form.type)
                  : by_format<MinMax<kMax, false, false>>(form.type);
}

}  // namespace

Handler find_half(const Form& form) {
  switch (form.op) {
    case Op::kAdd:
      return by_format<Add>(form.type);
    case Op::kSub:
      return by_format<Sub>(form.type);
    case Op::kMul:
      return by_format<Mul>(form.type);
    case Op::kFma:
      return by_format<Fma>(form.type);
    case Op::kMin:
      return find_min_max<false>(form);
    case Op::kMax:
      return find_min_max<true>(form);
    case Op::kNeg:
      return sign_by_format<true>(form.type);
    case Op::kAbs:
      return sign_by_format<false>(form.type);
    case Op::kEx2:
      return by_format<Ex2>(form.type);
    case Op::kTanh:
      return by_format<Tanh>(form.type);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
