// The approximate functions. They are computed in f64, or with correct rounding in f32, so their
// errors are below those that PTX documents. Special values are as documented.
#include <cmath>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

struct Sin {
  SOFTGPU_INLINE static float apply(float v) { return static_cast<float>(__builtin_sin(v)); }
};
struct Cos {
  SOFTGPU_INLINE static float apply(float v) { return static_cast<float>(__builtin_cos(v)); }
};
struct Ex2 {
  SOFTGPU_INLINE static float apply(float v) { return static_cast<float>(__builtin_exp2(v)); }
};
struct Lg2 {
  SOFTGPU_INLINE static float apply(float v) { return static_cast<float>(__builtin_log2(v)); }
};
struct Tanh {
  SOFTGPU_INLINE static float apply(float v) { return static_cast<float>(__builtin_tanh(v)); }
};
struct Rcp {
  SOFTGPU_INLINE static float apply(float v) { return 1.0f / v; }
};
struct Sqrt {
  SOFTGPU_INLINE static float apply(float v) { return __builtin_sqrtf(v); }
};
struct Rsqrt {
  SOFTGPU_INLINE static float apply(float v) {
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(v)));
  }
};

template <class Op, bool kFtz>
void approximate(Lanes& x, const Instr& i) {
  const float* a = x.at<float>(i.a);
  store_active_lanes(x.at<float>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    if constexpr (kFtz) return canonical(flush(Op::apply(flush(a[l]))));
    return canonical(Op::apply(a[l]));
  });
}
template <class Op>
Handler find_approximate(const Form& form) {
  return form.ftz ? approximate<Op, true> : approximate<Op, false>;
}

// div.approx is a * (1 / b): if b is so large that its reciprocal is subnormal, the quotient is 0,
// or NaN for an infinite dividend. div.full scales first and has no such range.
template <bool kFtz, bool kFull>
void divide(Lanes& x, const Instr& i) {
  const float* a = x.at<float>(i.a);
  const float* b = x.at<float>(i.b);
  store_lanes(x.at<float>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    float dividend = a[l];
    float divisor = b[l];
    if constexpr (kFtz) {
      dividend = flush(dividend);
      divisor = flush(divisor);
    }
    float quotient = dividend / divisor;
    if constexpr (!kFull) {
      const float magnitude = __builtin_fabsf(divisor);
      const bool huge = magnitude > 0x1p126f && magnitude <= 0x1.fffffep127f;
      quotient =
          huge ? dividend * bits_to<float>(bits_to<uint32_t>(divisor) & 0x80000000) : quotient;
    }
    if constexpr (kFtz) quotient = flush(quotient);
    return canonical(quotient);
  });
}

// The coarse f64 approximations: subnormal operands and results are flushed, and the low word of
// the result is zero.
SOFTGPU_INLINE double flush_double(double v) {
  const uint64_t bits = bits_to<uint64_t>(v);
  return bits_to<double>((bits & 0x7ff0000000000000) == 0 ? bits & 0x8000000000000000 : bits);
}
SOFTGPU_INLINE double upper_word(double v) {
  if (v != v) return bits_to<double>(uint64_t{0x7fffffff00000000});
  return bits_to<double>(bits_to<uint64_t>(flush_double(v)) & 0xffffffff00000000);
}
void coarse_rcp(Lanes& x, const Instr& i) {
  const double* a = x.at<double>(i.a);
  store_lanes(x.at<double>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return upper_word(1.0 / flush_double(a[l])); });
}
void coarse_rsqrt(Lanes& x, const Instr& i) {
  const double* a = x.at<double>(i.a);
  store_lanes(x.at<double>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    return upper_word(1.0 / __builtin_sqrt(flush_double(a[l])));
  });
}
void rsqrt64(Lanes& x, const Instr& i) {
  const double* a = x.at<double>(i.a);
  store_lanes(x.at<double>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return 1.0 / __builtin_sqrt(a[l]); });
}

}  // namespace

Handler find_transcendental(const Form& form) {
  if (form.type == Type::kF64) {
    if (form.op == Op::kRcp && form.coarse) return coarse_rcp;
    if (form.op == Op::kRsqrt) return form.coarse ? coarse_rsqrt : rsqrt64;
    return nullptr;
  }
  if (form.type != Type::kF32) return nullptr;
  switch (form.op) {
    case Op::kSin:
      return find_approximate<Sin>(form);
    case Op::kCos:
      return find_approximate<Cos>(form);
    case Op::kEx2:
      return find_approximate<Ex2>(form);
    case Op::kLg2:
      return find_approximate<Lg2>(form);
    case Op::kTanh:
      return find_approximate<Tanh>(form);
    case Op::kRcp:
      return form.approximate ? find_approximate<Rcp>(form) : nullptr;
    case Op::kSqrt:
      return form.approximate ? find_approximate<Sqrt>(form) : nullptr;
    case Op::kRsqrt:
      return find_approximate<Rsqrt>(form);
    case Op::kDiv:
      if (form.full_range) return form.ftz ? divide<true, true> : divide<false, true>;
      return form.approximate ? (form.ftz ? divide<true, false> : divide<false, false>) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
