// Integer arithmetic: add, sub, mul, mad (with carry chains), div, rem, min, max, abs, neg, sad,
// mul24, mad24, dp4a, dp2a, vabsdiff2, vabsdiff4; add, min and max of packed 16-bit integers.
#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/lane_loops.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

template <class T>
struct Traits;
#define SOFTGPU_INTEGER_TRAITS(T, SIGNED, WIDE, UNSIGNED, S)                                   \
  template <>                                                                                  \
  struct Traits<T> {                                                                           \
    static constexpr bool kSigned = SIGNED;                                                    \
    using Wide = WIDE;                                                                         \
    using Unsigned = UNSIGNED;                                                                 \
    using Signed = S;                                                                          \
    static constexpr T kMax = static_cast<T>(SIGNED ? static_cast<UNSIGNED>(~UNSIGNED{0}) >> 1 \
                                                    : static_cast<UNSIGNED>(~UNSIGNED{0}));    \
    static constexpr T kMin = static_cast<T>(SIGNED ? -kMax - 1 : 0);                          \
  };
SOFTGPU_INTEGER_TRAITS(uint16_t, false, uint32_t, uint16_t, int16_t)
SOFTGPU_INTEGER_TRAITS(int16_t, true, int32_t, uint16_t, int16_t)
SOFTGPU_INTEGER_TRAITS(uint32_t, false, uint64_t, uint32_t, int32_t)
SOFTGPU_INTEGER_TRAITS(int32_t, true, int64_t, uint32_t, int32_t)
SOFTGPU_INTEGER_TRAITS(uint64_t, false, unsigned __int128, uint64_t, int64_t)
SOFTGPU_INTEGER_TRAITS(int64_t, true, __int128, uint64_t, int64_t)
#undef SOFTGPU_INTEGER_TRAITS

// Signed arithmetic wraps, so it is done on the unsigned type. 16-bit operands would be promoted to
// int, where 0xffff * 0xffff overflows, so they are first widened to 32 unsigned bits.
template <class T>
struct Wrapping {
  using Type = typename Traits<T>::Unsigned;
};
template <>
struct Wrapping<uint16_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int16_t> {
  using Type = uint32_t;
};
template <class T>
using WrappingT = typename Wrapping<T>::Type;

template <class T>
SOFTGPU_INLINE WrappingT<T> wrap(T v) {
  return static_cast<WrappingT<T>>(v);
}

struct Add {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return static_cast<D>(wrap(a) + wrap(b));
  }
};
struct Sub {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return static_cast<D>(wrap(a) - wrap(b));
  }
};
struct MulLo {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return static_cast<D>(wrap(a) * wrap(b));
  }
};
struct MulHi {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    using Wide = typename Traits<D>::Wide;
    return static_cast<D>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(D)));
  }
};
struct MulWide {
  template <class D, class A>
  SOFTGPU_INLINE static D apply(A a, A b) {
    return static_cast<D>(static_cast<D>(a) * static_cast<D>(b));
  }
};
struct MadLo {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, D c) {
    return static_cast<D>(wrap(a) * wrap(b) + wrap(c));
  }
};
struct MadHi {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, D c) {
    return static_cast<D>(wrap(MulHi::apply<D>(a, b)) + wrap(c));
  }
};
struct MadWide {
  template <class D, class A>
  SOFTGPU_INLINE static D apply(A a, A b, D c) {
    return static_cast<D>(wrap(MulWide::apply<D>(a, b)) + wrap(c));
  }
};
// Saturating forms exist for s32 only.
SOFTGPU_INLINE int32_t clamp_s32(int64_t v) {
  v = v > INT32_MAX ? INT32_MAX : v;
  return static_cast<int32_t>(v < INT32_MIN ? INT32_MIN : v);
}
struct AddSat {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return clamp_s32(static_cast<int64_t>(a) + b);
  }
};
struct SubSat {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return clamp_s32(static_cast<int64_t>(a) - b);
  }
};
struct MadHiSat {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, D c) {
    return clamp_s32(static_cast<int64_t>(MulHi::apply<D>(a, b)) + c);
  }
};
struct Min {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return a < b ? b : a;
  }
};
template <class Op>
struct Relu {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    const D r = Op::template apply<D>(a, b);
    return r < 0 ? D{0} : r;
  }
};
struct Abs {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    return a < 0 ? static_cast<D>(0 - wrap(a)) : a;
  }
};
struct Neg {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    return static_cast<D>(0 - wrap(a));
  }
};
struct Sad {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, D c) {
    return static_cast<D>(wrap(c) + (a < b ? wrap(b) - wrap(a) : wrap(a) - wrap(b)));
  }
};

// Division by zero gives all ones, and its remainder is the dividend, as on NVIDIA's hardware.
struct Div {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    if (b == 0) return static_cast<D>(-1);
    if (Traits<D>::kSigned && b == static_cast<D>(-1)) return Neg::apply<D>(a);
    return static_cast<D>(a / b);
  }
};
struct Rem {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    if (b == 0) return a;
    if (Traits<D>::kSigned && b == static_cast<D>(-1)) return 0;
    return static_cast<D>(a % b);
  }
};

template <class Op, class D>
void dividing(Lanes& x, const Instr& i) {
  const D* a = x.at<D>(i.a);
  const D* b = x.at<D>(i.b);
  store_active_lanes(x.at<D>(i.d), x.mask,
                     [=](uint32_t l) SOFTGPU_LAMBDA { return Op::template apply<D>(a[l], b[l]); });
}

// mul24 and mad24 take 24-bit operands: .lo is bits 0-31 of the product, .hi bits 16-47.
template <class D, bool kHigh>
SOFTGPU_INLINE D product24(D a, D b) {
  using Wide = typename Traits<D>::Wide;
  const Wide wa = static_cast<D>(static_cast<uint32_t>(a) << 8) >> 8;
  const Wide wb = static_cast<D>(static_cast<uint32_t>(b) << 8) >> 8;
  return static_cast<D>((wa * wb) >> (kHigh ? 16 : 0));
}
template <bool kHigh>
struct Mul24 {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return product24<D, kHigh>(a, b);
  }
};
template <bool kHigh, bool kSaturate>
struct Mad24 {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, D c) {
    const D p = product24<D, kHigh>(a, b);
    if (kSaturate)
      return static_cast<D>(clamp_s32(static_cast<int64_t>(p) + static_cast<int64_t>(c)));
    return Add::apply<D>(p, c);
  }
};

// Dot products of four bytes with four bytes, or of two halves with two bytes.
template <class A, class B>
struct Dp4a {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b, D c) {
    uint32_t sum = static_cast<uint32_t>(c);
    for (int k = 0; k < 4; ++k) {
      sum += static_cast<uint32_t>(static_cast<int32_t>(static_cast<A>(a >> (8 * k))) *
                                   static_cast<int32_t>(static_cast<B>(b >> (8 * k))));
    }
    return static_cast<D>(sum);
  }
};
template <class A, class B, bool kHigh>
struct Dp2a {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b, D c) {
    uint32_t sum = static_cast<uint32_t>(c);
    for (int k = 0; k < 2; ++k) {
      sum += static_cast<uint32_t>(
          static_cast<int32_t>(static_cast<A>(a >> (16 * k))) *
          static_cast<int32_t>(static_cast<B>(b >> (8 * (k + (kHigh ? 2 : 0))))));
    }
    return static_cast<D>(sum);
  }
};

// Absolute differences of unsigned bytes or halves: each in its place, or their sum added to c.
template <int kBits, bool kSum>
struct AbsDiff {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b, uint32_t c) {
    constexpr uint32_t kField = (1u << kBits) - 1;
    uint32_t result = kSum ? c : 0;
    for (int k = 0; k < 32; k += kBits) {
      const uint32_t x = a >> k & kField;
      const uint32_t y = b >> k & kField;
      const uint32_t difference = x < y ? y - x : x - y;
      result += kSum ? difference : difference << k;
    }
    return result;
  }
};

// Carry chains. The carry is one bit per lane in the frame's registers. Subtraction adds the
// complement, so its carry is the inverse of a borrow. nvcc's 128-bit division depends on this: it
// adds the carry of a subtraction with addc.
enum class Chain : uint8_t { kAdd, kSub, kMadLo, kMadHi };

template <Chain kChain, class D, bool kIn, bool kOut>
void chained(Lanes& x, const Instr& i) {
  const D* a = x.at<D>(i.a);
  const D* b = x.at<D>(i.b);
  const D* c = x.at<D>(i.c);
  D* d = x.at<D>(i.d);
  uint32_t& carry = *x.at<uint32_t>(Slot(Bank::kRegisters, kCarryOffset));
  uint32_t out = carry;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    const D in = kIn ? (carry >> l) & 1 : 0;
    D result;
    bool overflow;
    if constexpr (kChain == Chain::kSub) {
      const D borrow = kIn ? 1 - in : 0;
      const bool first = __builtin_sub_overflow(a[l], b[l], &result);
      overflow = !(__builtin_sub_overflow(result, borrow, &result) || first);
    } else {
      D left = a[l];
      D right = b[l];
      if constexpr (kChain == Chain::kMadLo) left = MulLo::apply<D>(a[l], b[l]);
      if constexpr (kChain == Chain::kMadHi) left = MulHi::apply<D>(a[l], b[l]);
      if constexpr (kChain != Chain::kAdd) right = c[l];
      const bool first = __builtin_add_overflow(left, right, &result);
      overflow = __builtin_add_overflow(result, in, &result) || first;
    }
    d[l] = result;
    if (kOut) out = (out & ~kBit[l]) | (overflow ? kBit[l] : 0);
  }
  if (kOut) carry = out;
}

template <Chain kChain, class D>
Handler chain_of(const Form& form) {
  if (form.carry_in) {
    return form.carry_out ? chained<kChain, D, true, true> : chained<kChain, D, true, false>;
  }
  return chained<kChain, D, false, true>;
}

// mad.hi of a signed type multiplies signed; only the addition uses unsigned words.
template <class D, bool kIn, bool kOut>
void chained_signed_high(Lanes& x, const Instr& i) {
  using U = typename Traits<D>::Unsigned;
  alignas(64) U high[kLanes];
  const D* a = x.at<D>(i.a);
  const D* b = x.at<D>(i.b);
  SOFTGPU_LANE_LOOP high[l] = static_cast<U>(MulHi::apply<D>(a[l], b[l]));
  const U* c = x.at<U>(i.c);
  U* d = x.at<U>(i.d);
  uint32_t& carry = *x.at<uint32_t>(Slot(Bank::kRegisters, kCarryOffset));
  const uint32_t in = kIn ? carry : 0;
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    U result;
    const bool first = __builtin_add_overflow(high[l], c[l], &result);
    const bool overflow =
        __builtin_add_overflow(result, static_cast<U>((in >> l) & 1), &result) || first;
    d[l] = result;
    if (kOut) carry = (carry & ~kBit[l]) | (overflow ? kBit[l] : 0);
  }
}

template <class D>
Handler signed_high_of(const Form& form) {
  if (form.carry_in) {
    return form.carry_out ? chained_signed_high<D, true, true>
                          : chained_signed_high<D, true, false>;
  }
  return chained_signed_high<D, false, true>;
}

Handler find_chain(const Form& form) {
  const bool wide = ptx::size_of(form.type) == 8;
  switch (form.op) {
    case Op::kAdd:
      return wide ? chain_of<Chain::kAdd, uint64_t>(form) : chain_of<Chain::kAdd, uint32_t>(form);
    case Op::kSub:
      return wide ? chain_of<Chain::kSub, uint64_t>(form) : chain_of<Chain::kSub, uint32_t>(form);
    case Op::kMadLo:
      return wide ? chain_of<Chain::kMadLo, uint64_t>(form)
                  : chain_of<Chain::kMadLo, uint32_t>(form);
    case Op::kMadHi:
      if (form.type == Type::kS64) return signed_high_of<int64_t>(form);
      if (form.type == Type::kS32) return signed_high_of<int32_t>(form);
      return wide ? chain_of<Chain::kMadHi, uint64_t>(form)
                  : chain_of<Chain::kMadHi, uint32_t>(form);
    default:
      return nullptr;
  }
}

// Chosen by width alone, for operations whose result does not depend on signedness.
template <class Op>
Handler binary_by_width(Type type) {
  switch (ptx::size_of(type)) {
    case 2:
      return binary<Op, uint16_t>;
    case 4:
      return binary<Op, uint32_t>;
    case 8:
      return binary<Op, uint64_t>;
    default:
      return nullptr;
  }
}
template <class Op>
Handler ternary_by_width(Type type) {
  switch (ptx::size_of(type)) {
    case 2:
      return ternary<Op, uint16_t>;
    case 4:
      return ternary<Op, uint32_t>;
    case 8:
      return ternary<Op, uint64_t>;
    default:
      return nullptr;
  }
}

#define SOFTGPU_BY_TYPE(TEMPLATE, OP) \
  switch (form.type) {                \
    case Type::kU16:                  \
      return TEMPLATE<OP, uint16_t>;  \
    case Type::kS16:                  \
      return TEMPLATE<OP, int16_t>;   \
    case Type::kU32:                  \
      return TEMPLATE<OP, uint32_t>;  \
    case Type::kS32:                  \
      return TEMPLATE<OP, int32_t>;   \
    case Type::kU64:                  \
      return TEMPLATE<OP, uint64_t>;  \
    case Type::kS64:                  \
      return TEMPLATE<OP, int64_t>;   \
    default:                          \
      return nullptr;                 \
  }
#define SOFTGPU_BY_SIGNED_TYPE(TEMPLATE, OP) \
  switch (form.type) {                       \
    case Type::kS16:                         \
      return TEMPLATE<OP, int16_t>;          \
    case Type::kS32:                         \
      return TEMPLATE<OP, int32_t>;          \
    case Type::kS64:                         \
      return TEMPLATE<OP, int64_t>;          \
    default:                                 \
      return nullptr;                        \
  }

Handler find_dot_product(const Form& form) {
  const bool a_signed = form.type == Type::kS32;  // dp4a.atype.btype
  const bool b_signed = form.type2 == Type::kS32;
  if (form.op == Op::kDp4a) {
    if (a_signed)
      return b_signed ? ternary<Dp4a<int8_t, int8_t>, uint32_t>
                      : ternary<Dp4a<int8_t, uint8_t>, uint32_t>;
    return b_signed ? ternary<Dp4a<uint8_t, int8_t>, uint32_t>
                    : ternary<Dp4a<uint8_t, uint8_t>, uint32_t>;
  }
  if (form.high) {
    if (a_signed)
      return b_signed ? ternary<Dp2a<int16_t, int8_t, true>, uint32_t>
                      : ternary<Dp2a<int16_t, uint8_t, true>, uint32_t>;
    return b_signed ? ternary<Dp2a<uint16_t, int8_t, true>, uint32_t>
                    : ternary<Dp2a<uint16_t, uint8_t, true>, uint32_t>;
  }
  if (a_signed)
    return b_signed ? ternary<Dp2a<int16_t, int8_t, false>, uint32_t>
                    : ternary<Dp2a<int16_t, uint8_t, false>, uint32_t>;
  return b_signed ? ternary<Dp2a<uint16_t, int8_t, false>, uint32_t>
                  : ternary<Dp2a<uint16_t, uint8_t, false>, uint32_t>;
}

Handler find_24(const Form& form) {
  const bool is_signed = form.type == Type::kS32;
  if (form.op == Op::kMul24) {
    if (form.high) return is_signed ? binary<Mul24<true>, int32_t> : binary<Mul24<true>, uint32_t>;
    return is_signed ? binary<Mul24<false>, int32_t> : binary<Mul24<false>, uint32_t>;
  }
  if (form.saturate) return is_signed && form.high ? ternary<Mad24<true, true>, int32_t> : nullptr;
  if (form.high)
    return is_signed ? ternary<Mad24<true, false>, int32_t> : ternary<Mad24<true, false>, uint32_t>;
  return is_signed ? ternary<Mad24<false, false>, int32_t> : ternary<Mad24<false, false>, uint32_t>;
}

}  // namespace

Handler find_integer(const Form& form) {
  if (form.carry_in || form.carry_out) return find_chain(form);
  switch (form.op) {
    case Op::kAdd:
      return form.saturate ? Handler{binary<AddSat, int32_t>} : binary_by_width<Add>(form.type);
    case Op::kSub:
      return form.saturate ? Handler{binary<SubSat, int32_t>} : binary_by_width<Sub>(form.type);
    case Op::kMulLo:
      return binary_by_width<MulLo>(form.type);
    case Op::kMulHi:
      SOFTGPU_BY_TYPE(binary, MulHi)
    case Op::kMadLo:
      return ternary_by_width<MadLo>(form.type);
    case Op::kMadHi:
      if (form.saturate) return ternary<MadHiSat, int32_t>;
      SOFTGPU_BY_TYPE(ternary, MadHi)
    case Op::kMulWide:
      switch (form.type) {
        case Type::kU16:
          return binary<MulWide, uint32_t, uint16_t>;
        case Type::kS16:
          return binary<MulWide, int32_t, int16_t>;
        case Type::kU32:
          return binary<MulWide, uint64_t, uint32_t>;
        case Type::kS32:
          return binary<MulWide, int64_t, int32_t>;
        default:
          return nullptr;
      }
    case Op::kMadWide:
      switch (form.type) {
        case Type::kU16:
          return ternary<MadWide, uint32_t, uint16_t>;
        case Type::kS16:
          return ternary<MadWide, int32_t, int16_t>;
        case Type::kU32:
          return ternary<MadWide, uint64_t, uint32_t>;
        case Type::kS32:
          return ternary<MadWide, int64_t, int32_t>;
        default:
          return nullptr;
      }
    case Op::kDiv:
      SOFTGPU_BY_TYPE(dividing, Div)
    case Op::kRem:
      SOFTGPU_BY_TYPE(dividing, Rem)
    case Op::kMin:
      if (form.relu) return binary<Relu<Min>, int32_t>;
      SOFTGPU_BY_TYPE(binary, Min)
    case Op::kMax:
      if (form.relu) return binary<Relu<Max>, int32_t>;
      SOFTGPU_BY_TYPE(binary, Max)
    case Op::kAbs:
      SOFTGPU_BY_SIGNED_TYPE(unary, Abs)
    case Op::kNeg:
      SOFTGPU_BY_SIGNED_TYPE(unary, Neg)
    case Op::kSad:
      SOFTGPU_BY_TYPE(ternary, Sad)
    case Op::kMul24:
    case Op::kMad24:
      return find_24(form);
    case Op::kDp4a:
    case Op::kDp2a:
      return find_dot_product(form);
    case Op::kAbsDiff2:
      return form.accumulate ? ternary<AbsDiff<16, true>, uint32_t>
                             : ternary<AbsDiff<16, false>, uint32_t>;
    case Op::kAbsDiff4:
      return form.accumulate ? ternary<AbsDiff<8, true>, uint32_t>
                             : ternary<AbsDiff<8, false>, uint32_t>;
    default:
      return nullptr;
  }
}

namespace {

// Two 16-bit integers in one 32-bit register.
template <class Op, class T>
struct Pair {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b) {
    const uint16_t low =
        static_cast<uint16_t>(Op::template apply<T>(static_cast<T>(a), static_cast<T>(b)));
    const uint16_t high = static_cast<uint16_t>(
        Op::template apply<T>(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return static_cast<uint32_t>(high) << 16 | low;
  }
};

}  // namespace

Handler find_packed_integer(const Form& form) {
  const bool is_signed = form.type == Type::kS16x2;
  switch (form.op) {
    case Op::kAdd:
      return binary<Pair<Add, uint16_t>, uint32_t>;
    case Op::kMin:
      if (form.relu) return binary<Pair<Relu<Min>, int16_t>, uint32_t>;
      return is_signed ? binary<Pair<Min, int16_t>, uint32_t>
                       : binary<Pair<Min, uint16_t>, uint32_t>;
    case Op::kMax:
      if (form.relu) return binary<Pair<Relu<Max>, int16_t>, uint32_t>;
      return is_signed ? binary<Pair<Max, int16_t>, uint32_t>
                       : binary<Pair<Max, uint16_t>, uint32_t>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
