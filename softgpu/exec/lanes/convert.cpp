// cvt. Frequent conversions have vector loops. convert() makes all others, lane by lane. The vector
// loops must give the same results as convert().
#include <cmath>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

inline constexpr SmallFormat kF32{23, 8};
inline constexpr SmallFormat kE4m3{3, 4};
inline constexpr SmallFormat kE5m2{2, 5};

struct IntegerShape {
  uint32_t bits;  // 0: not an integer
  bool is_signed;
};
SOFTGPU_INLINE IntegerShape shape_of(Type type) {
  switch (type) {
    case Type::kU8:
    case Type::kB8:
      return {8, false};
    case Type::kS8:
      return {8, true};
    case Type::kU16:
    case Type::kB16:
      return {16, false};
    case Type::kS16:
      return {16, true};
    case Type::kU32:
    case Type::kB32:
      return {32, false};
    case Type::kS32:
      return {32, true};
    case Type::kU64:
    case Type::kB64:
      return {64, false};
    case Type::kS64:
      return {64, true};
    default:
      return {0, false};
  }
}

SOFTGPU_INLINE uint64_t load_bits(const std::byte* registers, uint32_t lane, uint32_t bytes) {
  uint64_t v = 0;
  __builtin_memcpy(&v, registers + lane * bytes, bytes);
  return v;
}

SOFTGPU_INLINE double round_integer(double v, Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return __builtin_trunc(v);
    case Rounding::kDown:
      return __builtin_floor(v);
    case Rounding::kUp:
      return __builtin_ceil(v);
    default:
      return __builtin_nearbyint(v);
  }
}

// A double that rounds to every smaller format as the integer itself would: if the integer has more
// than 53 bits, its lowest bits are folded into a sticky bit.
SOFTGPU_INLINE double sticky_double(bool negative, uint64_t magnitude) {
  double v;
  if (magnitude >> 53 != 0) {
    const uint64_t folded = magnitude >> 11 | ((magnitude & 0x7ff) != 0 ? 1 : 0);
    v = static_cast<double>(static_cast<int64_t>(folded)) * 2048.0;
  } else {
    v = static_cast<double>(static_cast<int64_t>(magnitude));
  }
  return negative ? -v : v;
}

double integer_to_double(bool is_signed, uint64_t bits, Rounding rounding) {
  if (rounding == Rounding::kNone || rounding == Rounding::kNearest) {
    return is_signed ? static_cast<double>(static_cast<int64_t>(bits)) : static_cast<double>(bits);
  }
  const RoundingScope scope(rounding);
  volatile uint64_t input = bits;
  volatile double result = is_signed ? static_cast<double>(static_cast<int64_t>(input))
                                     : static_cast<double>(static_cast<uint64_t>(input));
  return result;
}

// Narrows a NaN of f64: its sign and the upper bits of its payload stay. (All other NaNs made by a
// conversion are canonical, except those of bf16, whose bits stay unchanged.)
SOFTGPU_INLINE uint64_t narrow_nan(double v, SmallFormat format) {
  const uint64_t bits = bits_to<uint64_t>(v);
  const uint64_t payload = (bits & 0xfffffffffffff) >> (52 - format.mantissa_bits);
  return bits >> 63 << (format.mantissa_bits + format.exponent_bits) | format.infinity() | payload |
         uint64_t{1} << (format.mantissa_bits - 1);
}

// The bits of `v`, rounded to the destination's format.
SOFTGPU_INLINE uint64_t write_float(double v, const Conversion& how) {
  uint64_t bits = 0;
  switch (how.to) {
    case Type::kF64:
      bits = bits_to<uint64_t>(v);
      break;
    case Type::kF32:
      bits = round_to<kF32>(v, how.rounding, 0x7fffffff);
      break;
    case Type::kF16:
      bits = round_to<kHalf>(v, how.rounding);
      break;
    case Type::kBf16:
      bits = round_to<kBf16>(v, how.rounding);
      break;
    default:
      break;
  }
  if (how.to == Type::kF32 && how.ftz && becomes_subnormal(v, how.rounding)) bits &= 0x80000000;
  return bits;
}

SOFTGPU_INLINE uint64_t clamp_integer(__int128 v, IntegerShape shape) {
  const __int128 low = shape.is_signed ? -(__int128{1} << (shape.bits - 1)) : 0;
  const __int128 high = (__int128{1} << (shape.bits - (shape.is_signed ? 1 : 0))) - 1;
  return static_cast<uint64_t>(v < low ? low : v > high ? high : v);
}

// Truncates `bits` to the width of the type, then zero- or sign-extends them as the type requires.
SOFTGPU_INLINE uint64_t extend(uint64_t bits, IntegerShape shape) {
  const uint32_t unused = 64 - shape.bits;
  return shape.is_signed ? static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >> unused)
                         : bits << unused >> unused;
}

SOFTGPU_INLINE uint64_t double_to_integer(double v, const Conversion& how, IntegerShape to) {
  if (v != v) {  // NaN gives 0, or only the sign bit if either type has 64 bits
    const bool wide = how.from == Type::kF64 || to.bits == 64;
    return wide ? uint64_t{1} << (to.bits - 1) : 0;
  }
  v = round_integer(v, how.rounding);
  if (v >= 0x1p64) v = 0x1p64;  // keeps the conversion to 128 bits defined
  if (v <= -0x1p64) v = -0x1p64;
  return clamp_integer(static_cast<__int128>(v), to);
}

uint64_t convert(uint64_t bits, const Conversion& how) {
  const IntegerShape from = shape_of(how.from);
  const IntegerShape to = shape_of(how.to);
  if (from.bits != 0) {
    const uint64_t value = extend(bits, from);
    if (to.bits != 0) {
      if (!how.saturate) return extend(value, to);
      const __int128 wide =
          from.is_signed ? static_cast<__int128>(static_cast<int64_t>(value)) : value;
      return extend(clamp_integer(wide, to), to);
    }
    const bool negative = from.is_signed && static_cast<int64_t>(value) < 0;
    if (how.to == Type::kF64)
      return bits_to<uint64_t>(integer_to_double(from.is_signed, value, how.rounding));
    double v = sticky_double(negative, negative ? 0 - value : value);
    if (how.saturate) v = saturate(v);
    return write_float(v, how);
  }
  double v;
  switch (how.from) {
    case Type::kF64:
      v = bits_to<double>(bits);
      break;
    case Type::kF32: {
      const float f = bits_to<float>(static_cast<uint32_t>(bits));
      // Subnormal numbers of f32 round to a subnormal f16 even with .ftz (ptxas 13.0, H200).
      v = how.ftz && how.to != Type::kF16 ? flush(f) : f;
      break;
    }
    case Type::kF16:
      v = half_to_float(static_cast<uint16_t>(bits));
      break;
    default:
      v = bf16_to_float(static_cast<uint16_t>(bits));
      break;
  }
  if (to.bits != 0) return extend(double_to_integer(v, how, to), to);
  if (v != v && how.from == Type::kF64 && how.to != Type::kF64 && !how.saturate) {
    return narrow_nan(v, how.to == Type::kF32 ? kF32 : how.to == Type::kF16 ? kHalf : kBf16);
  }
  if (how.round_to_integer) v = round_integer(v, how.rounding);
  if (how.saturate) v = saturate(v);
  if (how.relu) v = __builtin_signbit(v) != 0 && v == v ? 0.0 : v;
  Conversion exact = how;
  if (how.round_to_integer) exact.rounding = Rounding::kNearest;  // v is already representable
  return write_float(v, exact);
}

SOFTGPU_INLINE Conversion conversion_of(const Instr& i) { return bits_to<Conversion>(i.imm); }

void convert_general(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  const std::byte* a = x.at<std::byte>(i.a);
  std::byte* d = x.at<std::byte>(i.d);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    const uint64_t result = convert(load_bits(a, l, how.from_bytes), how);
    __builtin_memcpy(d + l * how.to_bytes, &result, how.to_bytes);
  }
}

// A plain C++ conversion, where it gives the same result.
template <class D, class A>
void direct(Lanes& x, const Instr& i) {
  const A* a = x.at<A>(i.a);
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return static_cast<D>(a[l]); });
}
// Converts the low byte of a 16- or 32-bit register.
template <class D, class A, class Narrow>
void from_byte(Lanes& x, const Instr& i) {
  const A* a = x.at<A>(i.a);
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return static_cast<D>(static_cast<Narrow>(a[l])); });
}
template <bool kFtz>
void f32_to_f64(Lanes& x, const Instr& i) {
  const float* a = x.at<float>(i.a);
  store_lanes(x.at<double>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    return static_cast<double>(kFtz ? canonical(flush(a[l])) : a[l]);
  });
}
template <bool kFtz>
void f64_to_f32(Lanes& x, const Instr& i) {
  const double* a = x.at<double>(i.a);
  store_lanes(x.at<float>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    const float v = static_cast<float>(a[l]);
    const bool small = kFtz && becomes_subnormal(a[l], Rounding::kNearest);
    return small ? bits_to<float>(bits_to<uint32_t>(v) & 0x80000000) : v;
  });
}
void f16_to_f32(Lanes& x, const Instr& i) {
  const uint16_t* a = x.at<uint16_t>(i.a);
  store_lanes(x.at<float>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return canonical(half_to_float(a[l])); });
}
void bf16_to_f32(Lanes& x, const Instr& i) {
  const uint16_t* a = x.at<uint16_t>(i.a);
  store_lanes(x.at<uint32_t>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return static_cast<uint32_t>(a[l]) << 16; });
}
// f32 to s32, truncated and clamped; NaN gives 0.
void f32_to_s32(Lanes& x, const Instr& i) {
  const float* a = x.at<float>(i.a);
  store_lanes(x.at<int32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    const float v = a[l];  // flushing cannot change a truncation
    const float bounded = v < -0x1p31f ? -0x1p31f : v;
    const bool big = v >= 0x1p31f;
    const int32_t r = static_cast<int32_t>(big || v != v ? 0.0f : bounded);
    return big ? INT32_MAX : r;
  });
}
template <Rounding kRounding, bool kFtz>
void f32_to_integral(Lanes& x, const Instr& i) {
  const float* a = x.at<float>(i.a);
  store_lanes(x.at<float>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    const float v = kFtz ? flush(a[l]) : a[l];
    switch (kRounding) {
      case Rounding::kZero:
        return canonical(__builtin_truncf(v));
      case Rounding::kDown:
        return canonical(__builtin_floorf(v));
      case Rounding::kUp:
        return canonical(__builtin_ceilf(v));
      default:
        return canonical(__builtin_nearbyintf(v));
    }
  });
}

template <bool kFtz>
Handler find_integral(Rounding rounding) {
  switch (rounding) {
    case Rounding::kZero:
      return f32_to_integral<Rounding::kZero, kFtz>;
    case Rounding::kDown:
      return f32_to_integral<Rounding::kDown, kFtz>;
    case Rounding::kUp:
      return f32_to_integral<Rounding::kUp, kFtz>;
    default:
      return f32_to_integral<Rounding::kNearest, kFtz>;
  }
}

Handler find_integer_to_integer(const Form& form) {
  const IntegerShape to = shape_of(form.type);
  const IntegerShape from = shape_of(form.type2);
  if (form.saturate || to.bits != 8u * form.d_bytes) return convert_general;
  if (from.bits == 8 && form.a_bytes <= 4 && form.d_bytes <= 4) {
    if (form.a_bytes == 2) {
      if (form.d_bytes == 2)
        return from.is_signed ? from_byte<uint16_t, uint16_t, int8_t>
                              : from_byte<uint16_t, uint16_t, uint8_t>;
      return from.is_signed ? from_byte<uint32_t, uint16_t, int8_t>
                            : from_byte<uint32_t, uint16_t, uint8_t>;
    }
    if (form.d_bytes == 2)
      return from.is_signed ? from_byte<uint16_t, uint32_t, int8_t>
                            : from_byte<uint16_t, uint32_t, uint8_t>;
    return from.is_signed ? from_byte<uint32_t, uint32_t, int8_t>
                          : from_byte<uint32_t, uint32_t, uint8_t>;
  }
  if (from.bits != 8u * form.a_bytes) return convert_general;
  switch (from.bits * 100 + to.bits) {
    case 1616:
      return direct<uint16_t, uint16_t>;
    case 1632:
      return from.is_signed ? direct<uint32_t, int16_t> : direct<uint32_t, uint16_t>;
    case 1664:
      return from.is_signed ? direct<uint64_t, int16_t> : direct<uint64_t, uint16_t>;
    case 3216:
      return direct<uint16_t, uint32_t>;
    case 3232:
      return direct<uint32_t, uint32_t>;
    case 3264:
      return from.is_signed ? direct<uint64_t, int32_t> : direct<uint64_t, uint32_t>;
    case 6416:
      return direct<uint16_t, uint64_t>;
    case 6432:
      return direct<uint32_t, uint64_t>;
    case 6464:
      return direct<uint64_t, uint64_t>;
    default:
      return convert_general;
  }
}

Handler find_cvt(const Form& form) {
  const bool nearest = form.rounding == Rounding::kNone || form.rounding == Rounding::kNearest;
  const bool plain = !form.saturate && !form.relu;
  const Type to = form.type;
  const Type from = form.type2;
  if (shape_of(to).bits != 0 && shape_of(from).bits != 0) return find_integer_to_integer(form);
  if (!plain || form.d_bytes != ptx::size_of(to) || form.a_bytes != ptx::size_of(from))
    return convert_general;
  if (to == Type::kF32 && nearest) {
    if (from == Type::kS32) return direct<float, int32_t>;
    if (from == Type::kU32) return direct<float, uint32_t>;
    if (from == Type::kF64) return form.ftz ? f64_to_f32<true> : f64_to_f32<false>;
    if (from == Type::kF16) return f16_to_f32;
    if (from == Type::kBf16) return bf16_to_f32;
  }
  if (to == Type::kF32 && from == Type::kF32 && form.round_to_integer) {
    return form.ftz ? find_integral<true>(form.rounding) : find_integral<false>(form.rounding);
  }
  if (to == Type::kF64 && from == Type::kS32) return direct<double, int32_t>;
  if (to == Type::kF64 && from == Type::kU32) return direct<double, uint32_t>;
  if (to == Type::kF64 && from == Type::kF32 && !form.round_to_integer) {
    return form.ftz ? f32_to_f64<true> : f32_to_f64<false>;
  }
  if (to == Type::kS32 && from == Type::kF32 && form.rounding == Rounding::kZero) {
    return f32_to_s32;
  }
  return convert_general;
}

// Converts an f32 into an element of a packed register, in the low bits.
SOFTGPU_INLINE uint32_t small_float(float v, const Conversion& how) {
  if (how.relu && __builtin_signbit(v) != 0 && v == v) v = 0;  // also -0
  switch (how.to) {
    case Type::kF16x2: {
      const uint32_t r = round_to<kHalf>(v, how.rounding);
      return how.saturate && (r & 0x7fff) == 0x7c00 ? r - 1 : r;  // satfinite
    }
    case Type::kBf16x2: {
      const uint32_t r = round_to<kBf16>(v, how.rounding);
      return how.saturate && (r & 0x7fff) == 0x7f80 ? r - 1 : r;
    }
    case Type::kE4m3x2: {  // no infinity; 0x7f is NaN, and 0x7e (448) is the largest number
      if (v != v) return 0x7f;
      const uint32_t sign = bits_to<uint32_t>(v) >> 24 & 0x80;
      // Rounded with a wider exponent, because the all-ones exponent holds numbers.
      constexpr SmallFormat kWide{3, 5};
      const float magnitude = __builtin_fabsf(v);
      if (magnitude >= 464.0f) return sign | 0x7e;
      if (magnitude < 0x1p-6f) return sign | round_to<kE4m3>(magnitude, how.rounding);
      const uint32_t wide = round_to<kWide>(magnitude, how.rounding);
      const uint32_t narrow = wide - (8u << 3);  // the biases differ by 8
      return sign | (narrow > 0x7e ? 0x7e : narrow);
    }
    default: {  // e5m2
      const uint32_t r = round_to<kE5m2>(v, how.rounding, 0x7f);
      return v == v && (r & 0x7f) >= 0x7c ? (r & 0x80) | 0x7b : r;
    }
  }
}
// a becomes the upper element, b the lower element.
void pair_from_f32(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  const float* a = x.at<float>(i.a);
  const float* b = x.at<float>(i.b);
  if (how.to == Type::kE4m3x2 || how.to == Type::kE5m2x2) {
    store_active_lanes(x.at<uint16_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
      return static_cast<uint16_t>(small_float(a[l], how) << 8 | small_float(b[l], how));
    });
  } else {
    store_active_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
      return small_float(a[l], how) << 16 | small_float(b[l], how);
    });
  }
}
SOFTGPU_INLINE uint32_t byte_float_to_half(uint32_t v, Type from) {
  if (from == Type::kE5m2x2) return (v & 0x7f) > 0x7c ? kSmallNan : v << 8;
  const uint32_t magnitude = v & 0x7f;
  if (magnitude == 0x7f) return kSmallNan;
  const double scale = magnitude >= 8
                           ? static_cast<double>(8 + (magnitude & 7)) *
                                 static_cast<double>(1u << ((magnitude >> 3) - 1)) * 0x1p-9
                           : static_cast<double>(magnitude) * 0x1p-9;
  return (v & 0x80) << 8 | to_half(scale);
}
void pair_to_half(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  const uint16_t* a = x.at<uint16_t>(i.a);
  store_active_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    uint32_t high = byte_float_to_half(a[l] >> 8, how.from);
    uint32_t low = byte_float_to_half(a[l] & 0xff, how.from);
    if (how.relu) {
      high = (high & 0x8000) != 0 && high != kSmallNan ? 0 : high;
      low = (low & 0x8000) != 0 && low != kSmallNan ? 0 : low;
    }
    return high << 16 | low;
  });
}
void pair_of_halves_to_bytes(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  const uint32_t* a = x.at<uint32_t>(i.a);
  store_active_lanes(x.at<uint16_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    return static_cast<uint16_t>(small_float(half_to_float(static_cast<uint16_t>(a[l] >> 16)), how)
                                     << 8 |
                                 small_float(half_to_float(static_cast<uint16_t>(a[l])), how));
  });
}
// tf32 keeps 10 bits of the fraction.
void tf32(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  constexpr SmallFormat kTf32{10, 8};
  const float* a = x.at<float>(i.a);
  store_active_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    if (a[l] != a[l]) return 0x7fffffffu;
    return round_to<kTf32>(how.relu && a[l] < 0 ? 0.0f : a[l], how.rounding) << 13;
  });
}

// cvt.pack.sat: a and b saturated and packed; for bytes, the low half of c becomes the upper half
// of d.
void pack_saturated(Lanes& x, const Instr& i) {
  const Conversion how = conversion_of(i);
  const IntegerShape to = shape_of(how.to);
  const int32_t* a = x.at<int32_t>(i.a);
  const int32_t* b = x.at<int32_t>(i.b);
  const uint32_t* c = x.at<uint32_t>(i.c);
  const uint32_t field = (1u << to.bits) - 1;
  store_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    const uint32_t high = static_cast<uint32_t>(clamp_integer(a[l], to)) & field;
    const uint32_t low = static_cast<uint32_t>(clamp_integer(b[l], to)) & field;
    const uint32_t packed = high << to.bits | low;
    return to.bits == 8 ? packed | c[l] << 16 : packed;
  });
}

}  // namespace

Handler find_convert(const Form& form) {
  switch (form.op) {
    case Op::kCvt:
      if (form.type == Type::kTf32) return tf32;
      return find_cvt(form);
    case Op::kCvtPair:
      if (form.type2 == Type::kE4m3x2 || form.type2 == Type::kE5m2x2) return pair_to_half;
      if (form.type2 == Type::kF16x2) return pair_of_halves_to_bytes;
      return pair_from_f32;
    case Op::kCvtPack:
      return pack_saturated;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
