// Bits: logic, shifts, bit fields, counting, permutation, selection and moves.
#include <type_traits>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/lane_loops.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

template <class T>
inline constexpr uint32_t kBitsOf = 8 * sizeof(T);

struct And {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return a & b;
  }
};
struct Or {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return a | b;
  }
};
struct Xor {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b) {
    return a ^ b;
  }
};
struct Not {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    return static_cast<D>(~a);
  }
};
struct Cnot {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    return a == 0;
  }
};
struct Copy {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    return a;
  }
};
// Shift amounts above the width have the effect of the width.
struct Shl {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, uint32_t n) {
    const D shifted = static_cast<D>(a << (n & (kBitsOf<D> - 1)));
    return n < kBitsOf<D> ? shifted : D{0};
  }
};
struct Shr {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, uint32_t n) {
    const uint32_t last = kBitsOf<D> - 1;
    if constexpr (static_cast<D>(-1) < 0) {
      return static_cast<D>(a >> (n < last ? n : last));
    } else {
      const D shifted = static_cast<D>(a >> (n & last));
      return n <= last ? shifted : D{0};
    }
  }
};
template <bool kLeft, bool kClamp>
struct Shf {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t low, uint32_t high, uint32_t amount) {
    const uint32_t n = kClamp ? (amount < 32 ? amount : 32) : amount & 31;
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n);
  }
};
struct Popc {
  template <class D, class A>
  SOFTGPU_INLINE static D apply(A a) {
    return static_cast<D>(sizeof(A) == 8 ? __builtin_popcountll(a)
                                         : __builtin_popcount(static_cast<uint32_t>(a)));
  }
};
struct Clz {
  template <class D, class A>
  SOFTGPU_INLINE static D apply(A a) {
    if (a == 0) return kBitsOf<A>;
    return static_cast<D>(sizeof(A) == 8 ? __builtin_clzll(a)
                                         : __builtin_clz(static_cast<uint32_t>(a)));
  }
};
// The most significant bit that is not a sign bit; all ones for 0, and for -1 of a signed type.
template <bool kShiftAmount>
struct Bfind {
  template <class D, class A>
  SOFTGPU_INLINE static D apply(A a) {
    using U = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
    const U v = static_cast<U>(a < 0 ? ~a : a);
    if (v == 0) return static_cast<D>(-1);
    const uint32_t position = kBitsOf<A> - 1 - Clz::apply<uint32_t, U>(v);
    return static_cast<D>(kShiftAmount ? kBitsOf<A> - 1 - position : position);
  }
};
struct Brev {
  template <class D>
  SOFTGPU_INLINE static D apply(D a) {
    uint64_t v = static_cast<uint64_t>(a);
    v = (v & 0x5555555555555555) << 1 | ((v >> 1) & 0x5555555555555555);
    v = (v & 0x3333333333333333) << 2 | ((v >> 2) & 0x3333333333333333);
    v = (v & 0x0f0f0f0f0f0f0f0f) << 4 | ((v >> 4) & 0x0f0f0f0f0f0f0f0f);
    v = __builtin_bswap64(v);
    return static_cast<D>(v >> (64 - kBitsOf<D>));
  }
};
// The position or length of a field. The 32-bit forms use the low byte, as PTX says. The 64-bit
// forms, for which hardware has no instruction, use all bits (as compiled by ptxas 13.0, observed
// on an H200).
template <class D>
SOFTGPU_INLINE uint32_t field_operand(uint32_t n) {
  return sizeof(D) == 8 ? (n < 64 ? n : 64) : n & 0xff;
}
struct Bfe {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, uint32_t position, uint32_t length) {
    using U = std::conditional_t<sizeof(D) == 8, uint64_t, uint32_t>;
    constexpr uint32_t kBits = kBitsOf<D>;
    const uint32_t pos = field_operand<D>(position);
    const uint32_t len = field_operand<D>(length);
    const bool is_signed = static_cast<D>(-1) < 0;
    const uint32_t last = pos + len - 1 < kBits - 1 ? pos + len - 1 : kBits - 1;
    const U sign = !is_signed || len == 0 ? 0 : (static_cast<U>(a) >> last) & 1;
    const U shifted = pos < kBits ? static_cast<U>(a) >> pos : 0;
    const uint32_t real = pos >= kBits ? 0 : (len < kBits - pos ? len : kBits - pos);
    const U field = real == 0 ? 0 : ~U{0} >> (kBits - real);
    // Bits of the result beyond the extracted ones are copies of the sign.
    return static_cast<D>((shifted & field) | (sign != 0 ? ~field : 0));
  }
};
struct Bfi {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, D b, uint32_t position, uint32_t length) {
    constexpr uint32_t kBits = kBitsOf<D>;
    const uint32_t pos = field_operand<D>(position);
    const uint32_t len = field_operand<D>(length);
    if (pos >= kBits || len == 0) return b;
    const uint32_t real = len < kBits - pos ? len : kBits - pos;
    const D field = static_cast<D>((~D{0} >> (kBits - real)) << pos);
    return static_cast<D>((b & ~field) | ((a << pos) & field));
  }
};
// A mask of `b` bits, from bit `a` upwards.
template <bool kClamp>
struct Bmsk {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b) {
    const uint32_t start = kClamp ? (a < 32 ? a : 32) : a & 31;
    const uint32_t width = kClamp ? (b < 32 ? b : 32) : b & 31;
    const uint64_t ones = (uint64_t{1} << width) - 1;
    return static_cast<uint32_t>(ones << start);
  }
};
template <bool kClamp>
struct Szext {
  template <class D>
  SOFTGPU_INLINE static D apply(D a, uint32_t n) {
    const uint32_t width = kClamp ? (n < 32 ? n : 32) : n & 31;
    if (width == 0) return 0;
    const uint32_t shift = 32 - width;
    return static_cast<D>(static_cast<D>(static_cast<uint32_t>(a) << shift) >> shift);
  }
};
SOFTGPU_INLINE uint32_t byte_of(uint64_t bytes, uint32_t k) {
  return static_cast<uint32_t>(bytes >> (8 * (k & 7))) & 0xff;
}
template <PermuteMode kMode>
struct Prmt {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t b, uint32_t control) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    const uint32_t n = control & 3;
    uint32_t result = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      uint32_t byte = 0;
      if constexpr (kMode == PermuteMode::kIndex) {
        const uint32_t nibble = control >> (4 * k);
        byte = byte_of(bytes, nibble);
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;  // replicate the sign
      } else {
        uint32_t from = 0;
        if constexpr (kMode == PermuteMode::kF4e) from = n + k;
        if constexpr (kMode == PermuteMode::kB4e) from = n - k;
        if constexpr (kMode == PermuteMode::kRc8) from = n;
        if constexpr (kMode == PermuteMode::kEcl) from = k > n ? k : n;
        if constexpr (kMode == PermuteMode::kEcr) from = k < n ? k : n;
        if constexpr (kMode == PermuteMode::kRc16) from = (n & 1) * 2 + (k & 1);
        byte = byte_of(bytes, from);
      }
      result |= byte << (8 * k);
    }
    return result;
  }
};
// Finds the n-th set bit of a, from `base` upwards (n > 0) or downwards (n < 0). n = 0 tests the
// bit at `base`.
struct Fns {
  template <class D>
  SOFTGPU_INLINE static D apply(uint32_t a, uint32_t base, int32_t n) {
    if (base > 31) return ~0u;
    if (n == 0) return a >> base & 1 ? base : ~0u;
    const int step = n > 0 ? 1 : -1;
    int32_t left = n > 0 ? n : (n == INT32_MIN ? INT32_MAX : -n);
    for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step) {
      if ((a >> at & 1) != 0 && --left == 0) return static_cast<uint32_t>(at);
    }
    return ~0u;
  }
};

void lop3(Lanes& x, const Instr& i) {
  const uint32_t* a = x.at<uint32_t>(i.a);
  const uint32_t* b = x.at<uint32_t>(i.b);
  const uint32_t* c = x.at<uint32_t>(i.c);
  uint32_t table[8];  // each bit of the truth table, copied to all bits of a word
  for (uint32_t k = 0; k < 8; ++k) table[k] = (i.imm >> k & 1) != 0 ? ~0u : 0;
  store_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    const uint32_t va = a[l], vb = b[l], vc = c[l];
    return (~va & ~vb & ~vc & table[0]) | (~va & ~vb & vc & table[1]) |
           (~va & vb & ~vc & table[2]) | (~va & vb & vc & table[3]) | (va & ~vb & ~vc & table[4]) |
           (va & ~vb & vc & table[5]) | (va & vb & ~vc & table[6]) | (va & vb & vc & table[7]);
  });
}

// lop3.BoolOp: d as in lop3, and p = (d != 0) BoolOp q.
template <bool kAnd>
void lop3_test(Lanes& x, const Instr& i) {
  const uint32_t* d = x.at<uint32_t>(i.d);
  const uint32_t q = x.predicate(i.e) ^ (i.flags & kNegateC ? ~0u : 0);
  lop3(x, i);
  const uint32_t nonzero = test_lanes([=](uint32_t l) SOFTGPU_LAMBDA { return d[l] != 0; });
  x.set_predicate(i.d2, kAnd ? nonzero & q : nonzero | q);
}

template <class T>
void bfi(Lanes& x, const Instr& i) {
  const T* a = x.at<T>(i.a);
  const T* b = x.at<T>(i.b);
  const uint32_t* position = x.at<uint32_t>(i.c);
  const uint32_t* length = x.at<uint32_t>(i.e);
  store_lanes(x.at<T>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    return Bfi::apply<T>(a[l], b[l], position[l], length[l]);
  });
}

template <class T>
void selp(Lanes& x, const Instr& i) {
  const T* a = x.at<T>(i.a);
  const T* b = x.at<T>(i.b);
  const uint32_t p = x.predicate(i.c);
  store_lanes(x.at<T>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return (p & kBit[l]) != 0 ? a[l] : b[l]; });
}

// slct: a if c >= 0, else b. An f32 c is compared as a float: NaN selects b and -0 selects a.
template <class T, class C, bool kFtz>
void slct(Lanes& x, const Instr& i) {
  const T* a = x.at<T>(i.a);
  const T* b = x.at<T>(i.b);
  const C* c = x.at<C>(i.c);
  store_lanes(x.at<T>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    bool take = c[l] >= 0;
    if constexpr (kFtz) take = c[l] > -0x1p-126f;  // subnormals count as zero
    return take ? a[l] : b[l];
  });
}

// A predicate is one word per warp.
template <class Op>
void predicate_binary(Lanes& x, const Instr& i) {
  x.set_predicate(i.d, Op::template apply<uint32_t>(x.predicate(i.a), x.predicate(i.b)));
}
void predicate_not(Lanes& x, const Instr& i) { x.set_predicate(i.d, ~x.predicate(i.a)); }
void predicate_mov(Lanes& x, const Instr& i) { x.set_predicate(i.d, x.predicate(i.a)); }

void mov128(Lanes& x, const Instr& i) {
  const Wide128* a = x.at<Wide128>(i.a);
  store_active_lanes(x.at<Wide128>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA { return a[l]; });
}

// mov.b64 d, {a, b}: the first element is the least significant. Also b32 from halves, b64 from
// four halves, b128 from two b64 or four b32.
template <class Whole, class Part>
void pack(Lanes& x, const Instr& i) {
  constexpr uint32_t kParts = sizeof(Whole) / sizeof(Part);
  const Slot slots[4] = {i.a, i.b, i.c, i.e};
  alignas(64) Part gathered[kLanes][kParts];
  for (uint32_t k = 0; k < kParts; ++k) {
    const Part* part = x.at<Part>(slots[k]);
    for (uint32_t l = 0; l < kLanes; ++l) gathered[l][k] = part[l];
  }
  Whole* d = x.at<Whole>(i.d);
  for (uint32_t l = 0; l < kLanes; ++l) {
    if ((x.mask & kBit[l]) != 0) __builtin_memcpy(&d[l], gathered[l], sizeof(Whole));
  }
}

// mov.b64 {d, e}, a; a destination may be `_`.
template <class Whole, class Part>
void unpack(Lanes& x, const Instr& i) {
  constexpr uint32_t kParts = sizeof(Whole) / sizeof(Part);
  const Slot slots[4] = {i.d, i.d2, i.b, i.c};
  alignas(64) Part scattered[kLanes][kParts];
  const Whole* a = x.at<Whole>(i.a);
  for (uint32_t l = 0; l < kLanes; ++l) __builtin_memcpy(scattered[l], &a[l], sizeof(Whole));
  for (uint32_t k = 0; k < kParts; ++k) {
    store_lanes(x.at<Part>(slots[k]), x.mask,
                [&, k](uint32_t l) SOFTGPU_LAMBDA { return scattered[l][k]; });
  }
}

#define SOFTGPU_VECTOR_MOVE(FUNCTION)                               \
  if (whole == 4 && part == 2) return FUNCTION<uint32_t, uint16_t>; \
  if (whole == 8 && part == 4) return FUNCTION<uint64_t, uint32_t>; \
  if (whole == 8 && part == 2) return FUNCTION<uint64_t, uint16_t>; \
  if (whole == 16 && part == 8) return FUNCTION<Wide128, uint64_t>; \
  if (whole == 16 && part == 4) return FUNCTION<Wide128, uint32_t>; \
  return nullptr;

Handler find_pack(uint32_t whole, uint32_t part){SOFTGPU_VECTOR_MOVE(pack)} Handler
    find_unpack(uint32_t whole, uint32_t part) {
  SOFTGPU_VECTOR_MOVE(unpack)
}

template <class Op>
Handler logic(Type type) {
  switch (ptx::size_of(type)) {
    case 1:
      return predicate_binary<Op>;
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
Handler unary_by_width(Type type) {
  switch (ptx::size_of(type)) {
    case 2:
      return unary<Op, uint16_t>;
    case 4:
      return unary<Op, uint32_t>;
    case 8:
      return unary<Op, uint64_t>;
    default:
      return nullptr;
  }
}

Handler find_shr(Type type) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return binary<Shr, uint16_t, uint16_t, uint32_t>;
    case Type::kB32:
    case Type::kU32:
      return binary<Shr, uint32_t, uint32_t, uint32_t>;
    case Type::kB64:
    case Type::kU64:
      return binary<Shr, uint64_t, uint64_t, uint32_t>;
    case Type::kS16:
      return binary<Shr, int16_t, int16_t, uint32_t>;
    case Type::kS32:
      return binary<Shr, int32_t, int32_t, uint32_t>;
    case Type::kS64:
      return binary<Shr, int64_t, int64_t, uint32_t>;
    default:
      return nullptr;
  }
}

template <bool kShiftAmount>
Handler find_bfind(Type type) {
  switch (type) {
    case Type::kU32:
      return unary<Bfind<kShiftAmount>, uint32_t, uint32_t>;
    case Type::kS32:
      return unary<Bfind<kShiftAmount>, uint32_t, int32_t>;
    case Type::kU64:
      return unary<Bfind<kShiftAmount>, uint32_t, uint64_t>;
    case Type::kS64:
      return unary<Bfind<kShiftAmount>, uint32_t, int64_t>;
    default:
      return nullptr;
  }
}

template <class C, bool kFtz>
Handler find_slct(Type type) {
  switch (ptx::size_of(type)) {
    case 2:
      return slct<uint16_t, C, kFtz>;
    case 4:
      return slct<uint32_t, C, kFtz>;
    case 8:
      return slct<uint64_t, C, kFtz>;
    default:
      return nullptr;
  }
}

Handler find_prmt(PermuteMode mode) {
  switch (mode) {
    case PermuteMode::kIndex:
      return ternary<Prmt<PermuteMode::kIndex>, uint32_t>;
    case PermuteMode::kF4e:
      return ternary<Prmt<PermuteMode::kF4e>, uint32_t>;
    case PermuteMode::kB4e:
      return ternary<Prmt<PermuteMode::kB4e>, uint32_t>;
    case PermuteMode::kRc8:
      return ternary<Prmt<PermuteMode::kRc8>, uint32_t>;
    case PermuteMode::kEcl:
      return ternary<Prmt<PermuteMode::kEcl>, uint32_t>;
    case PermuteMode::kEcr:
      return ternary<Prmt<PermuteMode::kEcr>, uint32_t>;
    case PermuteMode::kRc16:
      return ternary<Prmt<PermuteMode::kRc16>, uint32_t>;
  }
  return nullptr;
}

}  // namespace

Handler find_bits(const Form& form) {
  const Type type = form.type;
  const uint32_t width = ptx::size_of(type);
  switch (form.op) {
    case Op::kAnd:
      return logic<And>(type);
    case Op::kOr:
      return logic<Or>(type);
    case Op::kXor:
      return logic<Xor>(type);
    case Op::kNot:
      return type == Type::kPred ? Handler{predicate_not} : unary_by_width<Not>(type);
    case Op::kCnot:
      return unary_by_width<Cnot>(type);
    case Op::kMov:
      if (type == Type::kPred) return predicate_mov;
      return width == 16 ? Handler{mov128} : unary_by_width<Copy>(type);
    case Op::kPack:
      return find_pack(width, form.a_bytes);
    case Op::kUnpack:
      return find_unpack(width, form.d_bytes);
    case Op::kShl:
      switch (width) {
        case 2:
          return binary<Shl, uint16_t, uint16_t, uint32_t>;
        case 4:
          return binary<Shl, uint32_t, uint32_t, uint32_t>;
        case 8:
          return binary<Shl, uint64_t, uint64_t, uint32_t>;
        default:
          return nullptr;
      }
    case Op::kShr:
      return find_shr(type);
    case Op::kShf:
      if (form.left)
        return form.clamp ? ternary<Shf<true, true>, uint32_t>
                          : ternary<Shf<true, false>, uint32_t>;
      return form.clamp ? ternary<Shf<false, true>, uint32_t>
                        : ternary<Shf<false, false>, uint32_t>;
    case Op::kPopc:
      return width == 8 ? unary<Popc, uint32_t, uint64_t> : unary<Popc, uint32_t, uint32_t>;
    case Op::kClz:
      return width == 8 ? unary<Clz, uint32_t, uint64_t> : unary<Clz, uint32_t, uint32_t>;
    case Op::kBfind:
      return form.shift_amount ? find_bfind<true>(type) : find_bfind<false>(type);
    case Op::kBrev:
      return width == 8 ? unary<Brev, uint64_t> : unary<Brev, uint32_t>;
    case Op::kBfe:
      switch (type) {
        case Type::kU32:
          return ternary<Bfe, uint32_t, uint32_t, uint32_t, uint32_t>;
        case Type::kS32:
          return ternary<Bfe, int32_t, int32_t, uint32_t, uint32_t>;
        case Type::kU64:
          return ternary<Bfe, uint64_t, uint64_t, uint32_t, uint32_t>;
        case Type::kS64:
          return ternary<Bfe, int64_t, int64_t, uint32_t, uint32_t>;
        default:
          return nullptr;
      }
    case Op::kBfi:
      return width == 8 ? bfi<uint64_t> : bfi<uint32_t>;
    case Op::kBmsk:
      return form.clamp ? binary<Bmsk<true>, uint32_t> : binary<Bmsk<false>, uint32_t>;
    case Op::kSzext:
      if (type == Type::kS32) {
        return form.clamp ? binary<Szext<true>, int32_t, int32_t, uint32_t>
                          : binary<Szext<false>, int32_t, int32_t, uint32_t>;
      }
      return form.clamp ? binary<Szext<true>, uint32_t> : binary<Szext<false>, uint32_t>;
    case Op::kPrmt:
      return find_prmt(form.permute);
    case Op::kLop3:
      if (form.combine == Combine::kAnd) return lop3_test<true>;
      if (form.combine == Combine::kOr) return lop3_test<false>;
      return lop3;
    case Op::kFns:
      return ternary<Fns, uint32_t, uint32_t, uint32_t, int32_t>;
    case Op::kSelp:
      switch (width) {
        case 2:
          return selp<uint16_t>;
        case 4:
          return selp<uint32_t>;
        case 8:
          return selp<uint64_t>;
        default:
          return nullptr;
      }
    case Op::kSlct:
      if (form.type2 == Type::kS32) return find_slct<int32_t, false>(type);
      return form.ftz ? find_slct<float, true>(type) : find_slct<float, false>(type);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
