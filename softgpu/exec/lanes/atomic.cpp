// atom and red. Lanes run one after another, in lane order, with the processor's atomic
// instructions. A red is an atom whose result goes to the bit bucket.
//
// All orderings run as sequentially consistent: on x86 every locked instruction is.
#include "softgpu/exec/lanes/address.h"
#include "softgpu/exec/lanes/handlers.h"
#include "softgpu/exec/lanes/numeric.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

// Replaces *p by f(*p) and returns the old value.
template <class T, class F>
SOFTGPU_INLINE T update(T* p, F f) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, f(old), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return old;
}

template <AtomicOp kOp, class T>
SOFTGPU_INLINE T apply(T* p, T b, T c) {
  if constexpr (kOp == AtomicOp::kAdd) return __atomic_fetch_add(p, b, __ATOMIC_SEQ_CST);
  if constexpr (kOp == AtomicOp::kAnd) return __atomic_fetch_and(p, b, __ATOMIC_SEQ_CST);
  if constexpr (kOp == AtomicOp::kOr) return __atomic_fetch_or(p, b, __ATOMIC_SEQ_CST);
  if constexpr (kOp == AtomicOp::kXor) return __atomic_fetch_xor(p, b, __ATOMIC_SEQ_CST);
  if constexpr (kOp == AtomicOp::kExch) return __atomic_exchange_n(p, b, __ATOMIC_SEQ_CST);
  if constexpr (kOp == AtomicOp::kCas) {
    T expected = b;
    __atomic_compare_exchange_n(p, &expected, c, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
  }
  if constexpr (kOp == AtomicOp::kMin) return update(p, [b](T old) { return b < old ? b : old; });
  if constexpr (kOp == AtomicOp::kMax) return update(p, [b](T old) { return old < b ? b : old; });
  if constexpr (kOp == AtomicOp::kInc) {
    return update(p, [b](T old) { return old >= b ? T{0} : static_cast<T>(old + 1); });
  }
  if constexpr (kOp == AtomicOp::kDec) {
    return update(p, [b](T old) { return old == 0 || old > b ? b : static_cast<T>(old - 1); });
  }
}

template <AtomicOp kOp, class T>
void integer(Lanes& x, const Instr& i) {
  x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, sizeof(T), true, at)) return;
  const T* b = x.at<T>(i.b);
  const T* c = x.at<T>(i.c);
  store_active_lanes(x.at<T>(i.d), x.mask, [&](uint32_t l) SOFTGPU_LAMBDA {
    return apply<kOp, T>(reinterpret_cast<T*>(at.host[l]), b[l], c[l]);
  });
}

// Floating-point elements. Bits is the word the processor updates; it may hold two elements.
struct AddF32 {
  using Bits = uint32_t;
  // Atomic additions in global memory flush subnormals; those in shared memory do not.
  SOFTGPU_INLINE static Bits combine(Bits old, Bits b, bool shared) {
    float x = bits_to<float>(old), y = bits_to<float>(b);
    if (!shared) x = flush(x), y = flush(y);
    float r = x + y;
    if (!shared) r = flush(r);
    return bits_to<Bits>(canonical(r));
  }
};
struct AddF64 {
  using Bits = uint64_t;
  SOFTGPU_INLINE static Bits combine(Bits old, Bits b, bool) {
    return bits_to<Bits>(bits_to<double>(old) + bits_to<double>(b));
  }
};
enum class SmallOp : uint8_t { kAdd, kMin, kMax };
template <SmallOp kOp, bool kBf, class Word>
struct Small {
  using Bits = Word;
  SOFTGPU_INLINE static uint16_t element(uint16_t old, uint16_t b) {
    const double x = kBf ? bf16_to_float(old) : half_to_float(old);
    const double y = kBf ? bf16_to_float(b) : half_to_float(b);
    double r = x + y;
    if constexpr (kOp == SmallOp::kMin) r = min_max<false, false>(x, y);
    if constexpr (kOp == SmallOp::kMax) r = min_max<true, false>(x, y);
    return kBf ? to_bf16(r) : to_half(r);
  }
  SOFTGPU_INLINE static Bits combine(Bits old, Bits b, bool) {
    uint32_t result = element(static_cast<uint16_t>(old), static_cast<uint16_t>(b));
    if constexpr (sizeof(Word) == 4) {
      result |= uint32_t{element(static_cast<uint16_t>(old >> 16), static_cast<uint16_t>(b >> 16))}
                << 16;
    }
    return static_cast<Bits>(result);
  }
};

template <class Op>
void floating(Lanes& x, const Instr& i) {
  using Bits = typename Op::Bits;
  x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, sizeof(Bits), true, at)) return;
  const Bits* b = x.at<Bits>(i.b);
  const uint64_t shared = reinterpret_cast<uint64_t>(x.shared);
  const uint64_t shared_bytes = x.shared_bytes;
  store_active_lanes(x.at<Bits>(i.d), x.mask, [&](uint32_t l) SOFTGPU_LAMBDA {
    const bool is_shared = at.host[l] - shared < shared_bytes;
    return update(reinterpret_cast<Bits*>(at.host[l]),
                  [&](Bits old) { return Op::combine(old, b[l], is_shared); });
  });
}

// Vector reductions and atomics (.v2, .v4, .v8): each element is atomic on its own.
template <class Op>
void floating_vector(Lanes& x, const Instr& i) {
  using Bits = typename Op::Bits;
  x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, static_cast<uint32_t>(sizeof(Bits)) * i.count, true, at)) return;
  // The list holds the destinations (the bit bucket for red), then the sources.
  const Slot* slots = x.lists + i.target;
  // All sources are read before any destination is written, because they may be the same registers.
  alignas(64) Bits sources[8][kLanes];
  for (uint32_t k = 0; k < i.count; ++k) {
    __builtin_memcpy(sources[k], x.at<Bits>(slots[i.count + k]), sizeof sources[k]);
  }
  for (uint32_t k = 0; k < i.count; ++k) {
    const Bits* b = sources[k];
    store_active_lanes(x.at<Bits>(slots[k]), x.mask, [&](uint32_t l) SOFTGPU_LAMBDA {
      return update(reinterpret_cast<Bits*>(at.host[l] + k * sizeof(Bits)),
                    [&](Bits old) { return Op::combine(old, b[l], false); });
    });
  }
}

// cmpxchg16b: every x86-64 processor since 2006 has it.
SOFTGPU_INLINE bool compare_exchange_128(Wide128* p, Wide128* expected, Wide128 desired) {
  bool equal;
  asm volatile("lock cmpxchg16b %1"
               : "=@ccz"(equal), "+m"(*p), "+a"(expected->low), "+d"(expected->high)
               : "b"(desired.low), "c"(desired.high)
               : "memory");
  return equal;
}
template <bool kCas>
void wide(Lanes& x, const Instr& i) {
  x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, 16, true, at)) return;
  const Wide128* b = x.at<Wide128>(i.b);
  const Wide128* c = x.at<Wide128>(i.c);
  store_active_lanes(x.at<Wide128>(i.d), x.mask, [&](uint32_t l) SOFTGPU_LAMBDA {
    auto* p = reinterpret_cast<Wide128*>(at.host[l]);
    Wide128 old = kCas ? b[l] : *p;
    if (kCas) {
      compare_exchange_128(p, &old, c[l]);
    } else {
      while (!compare_exchange_128(p, &old, b[l])) {
      }
    }
    return old;
  });
}

template <class T>
Handler find_integer_atomic(AtomicOp op) {
  switch (op) {
    case AtomicOp::kAdd:
      return integer<AtomicOp::kAdd, T>;
    case AtomicOp::kMin:
      return integer<AtomicOp::kMin, T>;
    case AtomicOp::kMax:
      return integer<AtomicOp::kMax, T>;
    case AtomicOp::kAnd:
      return integer<AtomicOp::kAnd, T>;
    case AtomicOp::kOr:
      return integer<AtomicOp::kOr, T>;
    case AtomicOp::kXor:
      return integer<AtomicOp::kXor, T>;
    case AtomicOp::kExch:
      return integer<AtomicOp::kExch, T>;
    case AtomicOp::kCas:
      return integer<AtomicOp::kCas, T>;
    case AtomicOp::kInc:
      return integer<AtomicOp::kInc, T>;
    case AtomicOp::kDec:
      return integer<AtomicOp::kDec, T>;
  }
  return nullptr;
}

template <class Op>
Handler one_or_many(const Form& form) {
  return form.elements > 1 ? floating_vector<Op> : floating<Op>;
}
template <bool kBf, class Word>
Handler find_small(const Form& form) {
  switch (form.atomic) {
    case AtomicOp::kAdd:
      return one_or_many<Small<SmallOp::kAdd, kBf, Word>>(form);
    case AtomicOp::kMin:
      return one_or_many<Small<SmallOp::kMin, kBf, Word>>(form);
    case AtomicOp::kMax:
      return one_or_many<Small<SmallOp::kMax, kBf, Word>>(form);
    default:
      return nullptr;
  }
}

}  // namespace

Handler find_atomic(const Form& form) {
  if (form.op != Op::kAtom && form.op != Op::kRed) return nullptr;
  switch (form.type) {
    case Type::kB16:
      if (form.atomic == AtomicOp::kCas) return integer<AtomicOp::kCas, uint16_t>;
      return form.atomic == AtomicOp::kExch ? integer<AtomicOp::kExch, uint16_t> : nullptr;
    case Type::kB32:
    case Type::kU32:
      return find_integer_atomic<uint32_t>(form.atomic);
    case Type::kB64:
    case Type::kU64:
      return find_integer_atomic<uint64_t>(form.atomic);
    case Type::kS32:
      return find_integer_atomic<int32_t>(form.atomic);
    case Type::kS64:
      return find_integer_atomic<int64_t>(form.atomic);
    case Type::kB128:
      return form.atomic == AtomicOp::kCas ? wide<true> : wide<false>;
    case Type::kF32:
      return one_or_many<AddF32>(form);
    case Type::kF64:
      return floating<AddF64>;
    case Type::kF16:
      return find_small<false, uint16_t>(form);
    case Type::kF16x2:
      return find_small<false, uint32_t>(form);
    case Type::kBf16:
      return find_small<true, uint16_t>(form);
    case Type::kBf16x2:
      return find_small<true, uint32_t>(form);
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
