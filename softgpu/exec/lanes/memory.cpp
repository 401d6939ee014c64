// ld, st, ldmatrix, stmatrix, cp.async, address conversions.
//
// Weak accesses are plain loads and stores. Volatile, relaxed, acquire and release accesses are
// atomic and use up more of a strand's turn, because spin loops consist of them. A GPU keeps two
// promises that PTX does not make, and kernels rely on them:
// - 16 bytes are one access, weak or not. CUB's scans pass a status and its value in this way.
// - Lanes that load the same bytes get the same value. So a warp that polls a word leaves its loop
//   as a whole.
#include "softgpu/exec/lanes/address.h"
#include "softgpu/exec/lanes/handlers.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Space;
using ptx::Type;

// GCC moves this type by one instruction, which is atomic at an aligned address on processors with
// AVX (Intel SDM volume 3, 9.1.1; AMD APM volume 2, 7.3.2). aligned(1), because a thread's local
// memory need not be aligned in the host's memory.
using Unit128 [[gnu::may_alias]] = long long __attribute__((vector_size(16), aligned(1)));

// ThreadSanitizer should find races of the interpreter, not those of a kernel.
#if defined(__SANITIZE_THREAD__)
#define SOFTGPU_WEAK_ACCESS __attribute__((noinline, no_sanitize_thread))
#else
#define SOFTGPU_WEAK_ACCESS SOFTGPU_INLINE
#endif

template <class M>
SOFTGPU_WEAK_ACCESS M load_weak(uint64_t host) {
  M v;
  __builtin_memcpy(&v, reinterpret_cast<const void*>(host), sizeof v);
  return v;
}
template <class M>
SOFTGPU_WEAK_ACCESS void store_weak(uint64_t host, M v) {
  __builtin_memcpy(reinterpret_cast<void*>(host), &v, sizeof v);
}

template <>
SOFTGPU_WEAK_ACCESS Wide128 load_weak<Wide128>(uint64_t host) {
  const Unit128 v = *reinterpret_cast<const volatile Unit128*>(host);
  return {static_cast<uint64_t>(v[0]), static_cast<uint64_t>(v[1])};
}
template <>
SOFTGPU_WEAK_ACCESS void store_weak<Wide128>(uint64_t host, Wide128 v) {
  *reinterpret_cast<volatile Unit128*>(host) =
      Unit128{static_cast<long long>(v.low), static_cast<long long>(v.high)};
}

// Converts all lanes, vectorised.
template <class M, class R>
SOFTGPU_WEAK_ACCESS void load_row(R* row, const M* source) {
  SOFTGPU_LANE_LOOP row[l] = static_cast<R>(source[l]);
}
template <class M, class R>
SOFTGPU_WEAK_ACCESS void store_row(M* target, const R* row) {
  SOFTGPU_LANE_LOOP target[l] = static_cast<M>(row[l]);
}

// GCC inlines no __atomic operation for 16 bytes. On x86 every load is an acquire and every store a
// release, so only the compiler's reordering must be prevented.
template <class M, bool kStrong>
SOFTGPU_INLINE M load_element(uint64_t host) {
  if constexpr (kStrong && sizeof(M) <= 8) {
    M v;
    __atomic_load(reinterpret_cast<M*>(host), &v, __ATOMIC_ACQUIRE);
    return v;
  } else {
    const M v = load_weak<M>(host);
    if constexpr (kStrong) __atomic_signal_fence(__ATOMIC_ACQUIRE);
    return v;
  }
}
template <class M, bool kStrong>
SOFTGPU_INLINE void store_element(uint64_t host, M v) {
  if constexpr (kStrong && sizeof(M) <= 8) {
    __atomic_store(reinterpret_cast<M*>(host), &v, __ATOMIC_RELEASE);
  } else {
    if constexpr (kStrong) __atomic_signal_fence(__ATOMIC_RELEASE);
    store_weak(host, v);
  }
}

template <class R, class M>
SOFTGPU_INLINE R widen(M v) {
  if constexpr (sizeof(M) == 16) {
    return v;
  } else {
    return static_cast<R>(v);
  }
}

// M is the type in memory, R the register. A signed M is sign-extended.
template <class M, class R, bool kStrong>
void ld(Lanes& x, const Instr& i) {
  if constexpr (kStrong) x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, sizeof(M), false, at)) return;
  R* d = x.at<R>(i.d);
  if (at.uniform) {
    const R value = widen<R>(load_element<M, kStrong>(at.host[0]));
    store_lanes(d, x.mask, [=](uint32_t) SOFTGPU_LAMBDA { return value; });
    return;
  }
  if constexpr (!kStrong && sizeof(M) <= 8) {
    if (at.contiguous) {
      load_row(d, reinterpret_cast<const M*>(at.host[0]));
      return;
    }
  }
  if (x.mask == kFullMask) {
    for (uint32_t l = 0; l < kLanes; ++l) d[l] = widen<R>(load_element<M, kStrong>(at.host[l]));
  } else {
    store_active_lanes(d, x.mask, [&](uint32_t l) SOFTGPU_LAMBDA {
      return widen<R>(load_element<M, kStrong>(at.host[l]));
    });
  }
}

template <class M, class R, bool kStrong>
void st(Lanes& x, const Instr& i) {
  if constexpr (kStrong) x.fuel -= kSpinCost;
  Addresses at;
  if (!resolve(x, i, sizeof(M), true, at)) return;
  const R* b = x.at<R>(i.b);
  if constexpr (!kStrong && sizeof(M) <= 8) {
    if (at.contiguous) {
      store_row(reinterpret_cast<M*>(at.host[0]), b);
      return;
    }
  }
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    store_element<M, kStrong>(at.host[l], widen<M>(b[l]));
  }
}

// These two functions access the elements of a vector in units of at most 16 bytes. Other threads
// see each unit as a whole.
template <class Unit, class M, class R, bool kStrong>
SOFTGPU_INLINE void load_units(const Addresses& at, uint32_t count, R (*values)[kLanes]) {
  constexpr uint32_t kElements = sizeof(Unit) / sizeof(M);
  for (uint32_t k = 0; k < count; k += kElements) {
    Unit unit;
    for (uint32_t l = 0; l < kLanes; ++l) {
      if (l == 0 || !at.uniform) unit = load_element<Unit, kStrong>(at.host[l] + k * sizeof(M));
      M elements[kElements];
      __builtin_memcpy(elements, &unit, sizeof unit);
      for (uint32_t e = 0; e < kElements; ++e) values[k + e][l] = widen<R>(elements[e]);
    }
  }
}
template <class Unit, class M, class R, bool kStrong>
SOFTGPU_INLINE void store_units(const Addresses& at, const Lanes& x, const Instr& i) {
  constexpr uint32_t kElements = sizeof(Unit) / sizeof(M);
  const Slot* slots = x.lists + i.target;
  for (uint32_t k = 0; k < i.count; k += kElements) {
    for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
      const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
      M elements[kElements];
      for (uint32_t e = 0; e < kElements; ++e) elements[e] = widen<M>(x.at<R>(slots[k + e])[l]);
      Unit unit;
      __builtin_memcpy(&unit, elements, sizeof unit);
      store_element<Unit, kStrong>(at.host[l] + k * sizeof(M), unit);
    }
  }
}

// Calls f with a value of the unit's type. Vectors have 2, 4 or 8 elements.
template <class M, class F>
SOFTGPU_INLINE void with_unit(uint32_t bytes, F f) {
  if constexpr (sizeof(M) == 1) {
    if (bytes == 2) return f(uint16_t{});
  }
  if constexpr (sizeof(M) <= 2) {
    if (bytes == 4) return f(uint32_t{});
  }
  if constexpr (sizeof(M) <= 4) {
    if (sizeof(M) == 1 || bytes == 8) return f(uint64_t{});
  }
  if constexpr (sizeof(M) > 1) f(Wide128{});
}

template <class M, class R, bool kStrong>
void ld_vector(Lanes& x, const Instr& i) {
  if constexpr (kStrong) x.fuel -= kSpinCost;
  const uint32_t bytes = static_cast<uint32_t>(sizeof(M)) * i.count;
  Addresses at;
  if (!resolve(x, i, bytes, false, at)) return;
  const Slot* slots = x.lists + i.target;
  // All elements are read before any is written: a destination may be the address register.
  alignas(64) R values[8][kLanes];
  with_unit<M>(bytes, [&](auto unit) SOFTGPU_LAMBDA {
    load_units<decltype(unit), M, R, kStrong>(at, i.count, values);
  });
  for (uint32_t k = 0; k < i.count; ++k) {
    const R* from = values[k];
    store_lanes(x.at<R>(slots[k]), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA { return from[l]; });
  }
}

template <class M, class R, bool kStrong>
void st_vector(Lanes& x, const Instr& i) {
  if constexpr (kStrong) x.fuel -= kSpinCost;
  const uint32_t bytes = static_cast<uint32_t>(sizeof(M)) * i.count;
  Addresses at;
  if (!resolve(x, i, bytes, true, at)) return;
  with_unit<M>(bytes, [&](auto unit)
                          SOFTGPU_LAMBDA { store_units<decltype(unit), M, R, kStrong>(at, x, i); });
}

// A matrix of ldmatrix and stmatrix has 8 rows of 8 elements. Lane 8k + r has the address of row r
// of matrix k. Lane l has two elements of each matrix, in one register: those of row l / 4 in
// columns 2 (l % 4) and 2 (l % 4) + 1. With .trans, rows and columns change places.
constexpr uint32_t kMatrixRows = 8;
using MatrixRow = uint16_t[8];

SOFTGPU_INLINE uint16_t& element_of(MatrixRow* rows, bool transposed, uint32_t lane,
                                    uint32_t which) {
  const uint32_t row = lane / 4, column = lane % 4 * 2 + which;
  return transposed ? rows[column][row] : rows[row][column];
}

// Returns false after recording a fault.
SOFTGPU_INLINE bool row_addresses(Lanes& x, const Instr& i, bool write, std::byte** rows) {
  alignas(64) uint64_t at[kLanes];
  compute_addresses(x, i, i.a, i.imm, (i.flags & kAddress32) != 0, at);
  for (uint32_t row = 0; row < kMatrixRows * i.count; ++row) {
    rows[row] = host_address(x, row, Space::kShared, at[row], sizeof(MatrixRow), write);
    if (rows[row] == nullptr) return false;
  }
  return true;
}

void ld_matrix(Lanes& x, const Instr& i) {
  std::byte* from[kLanes];
  if (!row_addresses(x, i, false, from)) return;
  const bool transposed = (i.flags & kTransposed) != 0;
  MatrixRow rows[kLanes];
  for (uint32_t row = 0; row < kMatrixRows * i.count; ++row) {
    __builtin_memcpy(rows[row], from[row], sizeof rows[row]);
  }
  const Slot* slots = x.lists + i.target;
  for (uint32_t k = 0; k < i.count; ++k) {
    MatrixRow* const matrix = rows + k * kMatrixRows;
    store_lanes(x.at<uint32_t>(slots[k]), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA {
      return element_of(matrix, transposed, l, 0) |
             static_cast<uint32_t>(element_of(matrix, transposed, l, 1)) << 16;
    });
  }
}

void st_matrix(Lanes& x, const Instr& i) {
  std::byte* to[kLanes];
  if (!row_addresses(x, i, true, to)) return;
  const bool transposed = (i.flags & kTransposed) != 0;
  const Slot* slots = x.lists + i.target;
  for (uint32_t k = 0; k < i.count; ++k) {
    MatrixRow rows[kMatrixRows];
    const uint32_t* const values = x.at<uint32_t>(slots[k]);
    for (uint32_t l = 0; l < kLanes; ++l) {
      element_of(rows, transposed, l, 0) = static_cast<uint16_t>(values[l]);
      element_of(rows, transposed, l, 1) = static_cast<uint16_t>(values[l] >> 16);
    }
    for (uint32_t row = 0; row < kMatrixRows; ++row) {
      __builtin_memcpy(to[k * kMatrixRows + row], rows[row], sizeof rows[row]);
    }
  }
}

// cp.async copies immediately, so commit_group and wait_group do nothing.
// Instr::imm: offset of the destination (low half) and of the source (high half).
void cp_async(Lanes& x, const Instr& i) {
  alignas(64) uint64_t to[kLanes], from[kLanes];
  compute_addresses(x, i, i.a, static_cast<int32_t>(i.imm), (i.flags & kAddress32) != 0, to);
  compute_addresses(x, i, i.b, static_cast<int32_t>(i.imm >> 32), false, from);
  const uint32_t* sizes = x.at<uint32_t>(i.c);
  for (uint32_t rest = x.mask; rest != 0; rest &= rest - 1) {
    const uint32_t l = static_cast<uint32_t>(__builtin_ctz(rest));
    // The bytes of the destination after the copied bytes are filled with zeros.
    const uint32_t copied = sizes[l] < i.count ? sizes[l] : i.count;
    std::byte* target = host_address(x, l, Space::kShared, to[l], i.count, true);
    if (target == nullptr) return;
    if (copied != 0) {
      if ((from[l] & (i.count - 1)) != 0) {
        x.fault_at(l, CUDA_ERROR_MISALIGNED_ADDRESS, from[l], "misaligned address");
        return;
      }
      const std::byte* source = host_address(x, l, Space::kGlobal, from[l], copied, false);
      if (source == nullptr) return;
      __builtin_memcpy(target, source, copied);
    }
    __builtin_memset(target + copied, 0, i.count - copied);
  }
}

// cvta and cvta.to: i.imm is the base of the window; for cvta.to, the negative base.
void cvta(Lanes& x, const Instr& i) {
  const uint64_t* a = x.at<uint64_t>(i.a);
  const uint64_t base = static_cast<uint64_t>(i.imm);
  store_lanes(x.at<uint64_t>(i.d), x.mask, [=](uint32_t l) SOFTGPU_LAMBDA { return a[l] + base; });
}
void isspacep(Lanes& x, const Instr& i) {
  const uint64_t* a = x.at<uint64_t>(i.a);
  const uint64_t window = static_cast<uint64_t>(i.imm);  // 0: global, in no window
  const uint32_t bits = test_lanes([=](uint32_t l) SOFTGPU_LAMBDA {
    return window == 0 ? a[l] < kSharedWindow || a[l] >= kFunctionWindow
                       : (a[l] & kWindowMask) == window;
  });
  x.set_predicate(i.d, bits);
}

// The address of a variable in the frame's local area.
template <class T>
void local_address(Lanes& x, const Instr& i) {
  const T address = static_cast<T>(i.imm + x.local_base);
  store_lanes(x.at<T>(i.d), x.mask, [=](uint32_t) SOFTGPU_LAMBDA { return address; });
}

enum class Shape : uint8_t { kLoad, kStore, kLoadVector, kStoreVector };

template <class M, class R>
Handler access(Shape shape, bool strong) {
  switch (shape) {
    case Shape::kLoad:
      return strong ? ld<M, R, true> : ld<M, R, false>;
    case Shape::kStore:
      return strong ? st<M, R, true> : st<M, R, false>;
    case Shape::kLoadVector:
      return strong ? ld_vector<M, R, true> : ld_vector<M, R, false>;
    case Shape::kStoreVector:
      return strong ? st_vector<M, R, true> : st_vector<M, R, false>;
  }
  return nullptr;
}
template <class M>
Handler by_register(Shape shape, bool strong, uint32_t register_bytes) {
  switch (register_bytes) {
    case 2:
      if constexpr (sizeof(M) <= 2) return access<M, uint16_t>(shape, strong);
      return nullptr;
    case 4:
      if constexpr (sizeof(M) <= 4) return access<M, uint32_t>(shape, strong);
      return nullptr;
    case 8:
      return access<M, uint64_t>(shape, strong);
    default:
      return nullptr;
  }
}

Handler find_access(const Form& form, bool store) {
  const bool vector = form.elements > 1;
  const Shape shape = store ? (vector ? Shape::kStoreVector : Shape::kStore)
                            : (vector ? Shape::kLoadVector : Shape::kLoad);
  const uint32_t width = ptx::size_of(form.type);
  if (width == 16)
    return form.d_bytes == 16 ? access<Wide128, Wide128>(shape, form.strong) : nullptr;
  if (!store) {
    switch (form.type) {  // the register is at least as wide and is sign-extended
      case Type::kS8:
        return by_register<int8_t>(shape, form.strong, form.d_bytes);
      case Type::kS16:
        if (form.d_bytes > 2) return by_register<int16_t>(shape, form.strong, form.d_bytes);
        break;
      case Type::kS32:
        if (form.d_bytes > 4) return by_register<int32_t>(shape, form.strong, form.d_bytes);
        break;
      default:
        break;
    }
  }
  switch (width) {
    case 1:
      return by_register<uint8_t>(shape, form.strong, form.d_bytes);
    case 2:
      return by_register<uint16_t>(shape, form.strong, form.d_bytes);
    case 4:
      return by_register<uint32_t>(shape, form.strong, form.d_bytes);
    case 8:
      return by_register<uint64_t>(shape, form.strong, form.d_bytes);
    default:
      return nullptr;
  }
}

}  // namespace

Handler find_memory(const Form& form) {
  switch (form.op) {
    case Op::kLd:
      return find_access(form, false);
    case Op::kSt:
      return find_access(form, true);
    case Op::kLdMatrix:
      return ld_matrix;
    case Op::kStMatrix:
      return st_matrix;
    case Op::kCpAsync:
      return cp_async;
    case Op::kCvta:
    case Op::kCvtaTo:
      return cvta;
    case Op::kIsspacep:
      return isspacep;
    case Op::kLocalAddress:
      return form.d_bytes == 8 ? local_address<uint64_t> : local_address<uint32_t>;
    default:
      return nullptr;
  }
}

}  // namespace softgpu::exec::SOFTGPU_ISA
