// Comparisons: setp and set.
//
// A comparison is a function from two registers to a word with a bit per lane. Decode replaces gt
// and ge by lt and le with exchanged operands.
#include <type_traits>

#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;
using CompareFunction = uint32_t (*)(const void* a, const void* b);

template <Compare kCompare, class T>
SOFTGPU_INLINE bool holds(T a, T b) {
  switch (kCompare) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      if constexpr (std::is_integral_v<T>) return a != b;
      return a < b || a > b;  // false on NaN
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    case Compare::kGe:
      return a >= b;
    case Compare::kEqu:
      return !(a < b || a > b);
    case Compare::kNeu:
      return a != b;
    case Compare::kLtu:
      return !(a >= b);
    case Compare::kLeu:
      return !(a > b);
    case Compare::kGtu:
      return !(a <= b);
    case Compare::kGeu:
      return !(a < b);
    case Compare::kNum:
      return a == a && b == b;
    case Compare::kNan:
      return a != a || b != b;
  }
  return false;
}

// How an element is read: unchanged, flushed, or widened from 16 bits.
template <class T>
struct Plain {
  using Element = T;
  SOFTGPU_INLINE static T read(T v) { return v; }
};
struct Flushed {
  using Element = float;
  SOFTGPU_INLINE static float read(float v) { return flush(v); }
};
template <bool kFtz>
struct HalfElement {
  using Element = uint16_t;
  SOFTGPU_INLINE static float read(uint16_t v) {
    return half_to_float(kFtz && (v & 0x7c00) == 0 ? v & 0x8000 : v);
  }
};
struct Bf16Element {
  using Element = uint16_t;
  SOFTGPU_INLINE static float read(uint16_t v) { return bf16_to_float(v); }
};

template <Compare kCompare, class Reader>
uint32_t compare(const void* left, const void* right) {
  using Element = typename Reader::Element;
  const Element* a = static_cast<const Element*>(left);
  const Element* b = static_cast<const Element*>(right);
  return test_lanes([=](uint32_t l) SOFTGPU_LAMBDA {
    return holds<kCompare>(Reader::read(a[l]), Reader::read(b[l]));
  });
}

template <Compare kCompare, class Reader>
void setp(Lanes& x, const Instr& i) {
  x.set_predicate(i.d, compare<kCompare, Reader>(x.at<void>(i.a), x.at<void>(i.b)));
}

SOFTGPU_INLINE uint32_t combined(uint32_t bits, Combine combine, uint32_t other) {
  switch (combine) {
    case Combine::kAnd:
      return bits & other;
    case Combine::kOr:
      return bits | other;
    case Combine::kXor:
      return bits ^ other;
    case Combine::kNone:
      break;
  }
  return bits;
}

// For all handlers except setp<>(): i.imm is the CompareFunction, i.sub the Combine.
SOFTGPU_INLINE uint32_t evaluate(Lanes& x, const Instr& i) {
  const auto function = reinterpret_cast<CompareFunction>(static_cast<uintptr_t>(i.imm));
  return function(x.at<void>(i.a), x.at<void>(i.b));
}
SOFTGPU_INLINE uint32_t third(Lanes& x, const Instr& i) {
  return x.predicate(i.c) ^ ((i.flags & kNegateC) != 0 ? ~0u : 0);
}
void setp_general(Lanes& x, const Instr& i) {
  const uint32_t bits = evaluate(x, i);
  const uint32_t other = third(x, i);
  const auto combine = static_cast<Combine>(i.sub);
  const uint32_t first = combined(bits, combine, other);
  const uint32_t second = combined(~bits, combine, other);
  x.set_predicate(i.d, first);
  x.set_predicate(i.d2, second);
}

// set gives all ones for an integer destination, 1.0 for a floating-point one.
template <class D, D kTrue>
void set(Lanes& x, const Instr& i) {
  uint32_t bits = evaluate(x, i);
  if (static_cast<Combine>(i.sub) != Combine::kNone) {
    bits = combined(bits, static_cast<Combine>(i.sub), third(x, i));
  }
  store_lanes(x.at<D>(i.d), x.mask,
              [=](uint32_t l) SOFTGPU_LAMBDA { return (bits & kBit[l]) != 0 ? kTrue : D{0}; });
}

// The result bits of both halves of packed operands.
SOFTGPU_INLINE void evaluate_pair(Lanes& x, const Instr& i, uint32_t bits[2]) {
  const auto function = reinterpret_cast<CompareFunction>(static_cast<uintptr_t>(i.imm));
  const uint32_t* a = x.at<uint32_t>(i.a);
  const uint32_t* b = x.at<uint32_t>(i.b);
  for (uint32_t k = 0; k < 2; ++k) {
    alignas(64) uint16_t ha[kLanes], hb[kLanes];
    SOFTGPU_LANE_LOOP ha[l] = static_cast<uint16_t>(a[l] >> (16 * k));
    SOFTGPU_LANE_LOOP hb[l] = static_cast<uint16_t>(b[l] >> (16 * k));
    bits[k] = function(ha, hb);
  }
}
// setp.f16x2: p is the result of the low halves, q that of the high halves.
void setp_pair(Lanes& x, const Instr& i) {
  uint32_t bits[2];
  evaluate_pair(x, i, bits);
  const uint32_t other = third(x, i);
  x.set_predicate(i.d, combined(bits[0], static_cast<Combine>(i.sub), other));
  x.set_predicate(i.d2, combined(bits[1], static_cast<Combine>(i.sub), other));
}
template <uint16_t kTrue>
void set_pair(Lanes& x, const Instr& i) {
  uint32_t bits[2];
  evaluate_pair(x, i, bits);
  if (static_cast<Combine>(i.sub) != Combine::kNone) {
    for (uint32_t& b : bits) b = combined(b, static_cast<Combine>(i.sub), third(x, i));
  }
  store_lanes(x.at<uint32_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
    return ((bits[1] & kBit[l]) != 0 ? uint32_t{kTrue} << 16 : 0) |
           ((bits[0] & kBit[l]) != 0 ? uint32_t{kTrue} : 0);
  });
}

struct Found {
  Handler simple = nullptr;
  CompareFunction function = nullptr;
};
template <Compare kCompare, class Reader>
Found found() {
  return {setp<kCompare, Reader>, compare<kCompare, Reader>};
}

template <class T>
Found integer(Compare c) {
  using R = Plain<T>;
  switch (c) {
    case Compare::kEq:
      return found<Compare::kEq, R>();
    case Compare::kNe:
      return found<Compare::kNe, R>();
    case Compare::kLt:
      return found<Compare::kLt, R>();
    case Compare::kLe:
      return found<Compare::kLe, R>();
    default:
      return {};
  }
}
template <class R>
Found floating(Compare c) {
  switch (c) {
    case Compare::kEq:
      return found<Compare::kEq, R>();
    case Compare::kNe:
      return found<Compare::kNe, R>();
    case Compare::kLt:
      return found<Compare::kLt, R>();
    case Compare::kLe:
      return found<Compare::kLe, R>();
    case Compare::kEqu:
      return found<Compare::kEqu, R>();
    case Compare::kNeu:
      return found<Compare::kNeu, R>();
    case Compare::kLtu:
      return found<Compare::kLtu, R>();
    case Compare::kLeu:
      return found<Compare::kLeu, R>();
    case Compare::kNum:
      return found<Compare::kNum, R>();
    case Compare::kNan:
      return found<Compare::kNan, R>();
    default:
      return {};  // decode has replaced gt, ge and their unordered forms
  }
}

Found find(Compare c, Type type, bool ftz) {
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      return integer<uint16_t>(c);
    case Type::kS16:
      return integer<int16_t>(c);
    case Type::kB32:
    case Type::kU32:
      return integer<uint32_t>(c);
    case Type::kS32:
      return integer<int32_t>(c);
    case Type::kB64:
    case Type::kU64:
      return integer<uint64_t>(c);
    case Type::kS64:
      return integer<int64_t>(c);
    case Type::kF32:
      return ftz ? floating<Flushed>(c) : floating<Plain<float>>(c);
    case Type::kF64:
      return floating<Plain<double>>(c);
    case Type::kF16:
    case Type::kF16x2:
      return ftz ? floating<HalfElement<true>>(c) : floating<HalfElement<false>>(c);
    case Type::kBf16:
    case Type::kBf16x2:
      return floating<Bf16Element>(c);
    default:
      return {};
  }
}

Handler find_set(Type d) {
  switch (d) {
    case Type::kU16:
    case Type::kS16:
      return set<uint16_t, 0xffff>;
    case Type::kU32:
    case Type::kS32:
      return set<uint32_t, ~0u>;
    case Type::kF32:
      return set<uint32_t, 0x3f800000>;
    case Type::kF16:
      return set<uint16_t, 0x3c00>;
    case Type::kBf16:
      return set<uint16_t, 0x3f80>;
    default:
      return nullptr;
  }
}

}  // namespace

// The handlers other than setp<>() also need comparison_of() in Instr::imm.
Handler find_compare(const Form& form) {
  if (form.op == Op::kSetp) {
    if (form.type == Type::kF16x2 || form.type == Type::kBf16x2) return setp_pair;
    const Found f = find(form.compare, form.type, form.ftz);
    if (f.simple == nullptr) return nullptr;
    return form.combine == Combine::kNone && form.elements == 1 ? f.simple : setp_general;
  }
  if (form.op == Op::kSet) {  // type: of the result, type2: of the operands
    if (find(form.compare, form.type2, form.ftz).function == nullptr) return nullptr;
    if (form.type2 == Type::kF16x2 || form.type2 == Type::kBf16x2) {
      if (form.type == Type::kF16x2) return set_pair<0x3c00>;
      if (form.type == Type::kBf16x2) return set_pair<0x3f80>;
      return set_pair<0xffff>;
    }
    return find_set(form.type);
  }
  return nullptr;
}

uintptr_t comparison_of(const Form& form) {
  const Type operands = form.op == Op::kSet ? form.type2 : form.type;
  return reinterpret_cast<uintptr_t>(find(form.compare, operands, form.ftz).function);
}

}  // namespace softgpu::exec::SOFTGPU_ISA
