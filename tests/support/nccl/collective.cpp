#include "tests/support/nccl/collective.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace testnccl {
namespace {

constexpr std::array<Shape, 8> kShapes{{
    {"AllReduce", true, false, false, false, false, false, InPlace::kSame},
    {"Broadcast", false, true, false, true, false, false, InPlace::kSame},
    {"Reduce", true, true, false, false, false, true, InPlace::kSame},
    {"AllGather", false, false, false, false, true, false, InPlace::kPartOfReceived},
    {"ReduceScatter", true, false, true, false, false, false, InPlace::kPartOfSent},
    {"AlltoAll", false, false, true, false, true, false, InPlace::kNever},
    {"Gather", false, true, false, false, true, true, InPlace::kPartOfReceived},
    {"Scatter", false, true, true, true, false, false, InPlace::kPartOfSent},
}};

// A float of 16 or 8 bits. `kFinite`: no infinities, and NaN is the value with all bits set
// (float8e4m3).
template <typename Word, int kExponentBits, int kMantissaBits, bool kFinite>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kTopExponent = (1 << kExponentBits) - 1;
  static constexpr Word kMagnitude = static_cast<Word>((1u << (kExponentBits + kMantissaBits)) - 1);
  static constexpr Word kInfinity = static_cast<Word>(kTopExponent << kMantissaBits);
  static constexpr Word kLargest = static_cast<Word>(kFinite ? kMagnitude - 1 : kInfinity - 1);

  Word word;

  static double value_of(Word magnitude) {
    const int exponent = magnitude >> kMantissaBits;
    const int mantissa = magnitude & ((1 << kMantissaBits) - 1);
    return exponent == 0
               ? std::ldexp(mantissa, 1 - kBias - kMantissaBits)
               : std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
  }
  operator double() const {
    const auto magnitude = static_cast<Word>(word & kMagnitude);
    double value = value_of(magnitude);
    if (kFinite ? magnitude == kMagnitude : magnitude > kInfinity) {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (!kFinite && magnitude == kInfinity) {
      value = std::numeric_limits<double>::infinity();
    }
    return (word & ~kMagnitude & static_cast<Word>(~0)) != 0 ? -value : value;
  }
  // Rounds to the nearest, ties to even.
  static SmallFloat from(double value) {
    const auto sign = static_cast<Word>(std::signbit(value) ? kMagnitude + 1u : 0u);
    const double magnitude = std::abs(value);
    if (std::isnan(value)) return {static_cast<Word>(sign | kMagnitude)};
    int exponent = 0;
    (void)std::frexp(magnitude, &exponent);
    const int step = std::max(exponent - 1, 1 - kBias) - kMantissaBits;  // of the last bit
    const double steps = std::nearbyint(std::ldexp(magnitude, -step));
    // Also correct for subnormal values, and if rounding raises the value to the next exponent.
    const double word = std::ldexp(step + kMantissaBits + kBias - 1, kMantissaBits) + steps;
    const auto low = static_cast<Word>(std::min<double>(word, kLargest + 1));
    return {static_cast<Word>(sign | low)};
  }
};

using Half = SmallFloat<uint16_t, 5, 10, false>;
using Bfloat = SmallFloat<uint16_t, 8, 7, false>;
using E4m3 = SmallFloat<uint8_t, 4, 3, true>;
using E5m2 = SmallFloat<uint8_t, 5, 2, false>;

template <typename T>
struct Arithmetic {
  using Wide =
      std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  static T from(Wide value) { return static_cast<T>(value); }
};
template <typename Word, int kE, int kM, bool kF>
struct Arithmetic<SmallFloat<Word, kE, kM, kF>> {
  using Wide = double;
  static SmallFloat<Word, kE, kM, kF> from(double value) {
    return SmallFloat<Word, kE, kM, kF>::from(value);
  }
};

template <typename T>
T combine(int op, T left, T right) {
  using Wide = typename Arithmetic<T>::Wide;
  switch (op) {
    case ncclProd:
      return Arithmetic<T>::from(
          static_cast<Wide>(static_cast<Wide>(left) * static_cast<Wide>(right)));
    case ncclMax:
      return left < right ? right : left;
    case ncclMin:
      return right < left ? right : left;
    default:  // sums, unsigned because they may wrap
      return Arithmetic<T>::from(
          static_cast<Wide>(static_cast<Wide>(left) + static_cast<Wide>(right)));
  }
}

template <typename T>
T quotient(T sum, int ranks) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(sum / static_cast<T>(ranks));
  } else {
    return Arithmetic<T>::from(sum / ranks);
  }
}

template <typename T>
void reduce_as(int op, const std::vector<Bytes>& inputs, Bytes& result) {
  auto* to = reinterpret_cast<T*>(result.data());
  const size_t count = result.size() / sizeof(T);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const auto* from = reinterpret_cast<const T*>(inputs[rank].data());
    for (size_t i = 0; i < count; ++i) to[i] = combine(op, to[i], from[i]);
  }
  if (op != ncclAvg) return;
  for (size_t i = 0; i < count; ++i) to[i] = quotient(to[i], static_cast<int>(inputs.size()));
}

template <typename T>
void scale_as(Bytes& elements, const void* scalar) {
  auto* at = reinterpret_cast<T*>(elements.data());
  T factor;
  std::memcpy(&factor, scalar, sizeof factor);
  for (size_t i = 0; i < elements.size() / sizeof(T); ++i) at[i] = combine(ncclProd, at[i], factor);
}

struct Type {
  const char* name;
  size_t bytes;
  void (*reduce)(int op, const std::vector<Bytes>& inputs, Bytes& result);
  void (*scale)(Bytes& elements, const void* scalar);
};

template <typename T>
constexpr Type type(const char* name) {
  return {name, sizeof(T), reduce_as<T>, scale_as<T>};
}

constexpr std::array<Type, ncclNumTypes> kTypes{
    type<int8_t>("int8"),     type<uint8_t>("uint8"),   type<int32_t>("int32"),
    type<uint32_t>("uint32"), type<int64_t>("int64"),   type<uint64_t>("uint64"),
    type<Half>("float16"),    type<float>("float32"),   type<double>("float64"),
    type<Bfloat>("bfloat16"), type<E4m3>("float8e4m3"), type<E5m2>("float8e5m2"),
};

constexpr std::array<const char*, ncclNumOps + 1> kOps{"sum", "prod", "max",
                                                       "min", "avg",  "premulsum"};

Bytes reduced(const Call& call, const std::vector<Bytes>& inputs) {
  Bytes result = inputs[0];
  kTypes[call.type].reduce(call.op, inputs, result);
  return result;
}

Bytes part(const Bytes& bytes, size_t index, size_t size) {
  const auto begin = bytes.begin() + static_cast<ptrdiff_t>(index * size);
  return Bytes(begin, begin + static_cast<ptrdiff_t>(size));
}

}  // namespace

const Shape& shape_of(Collective what) { return kShapes[static_cast<size_t>(what)]; }

size_t size_of(ncclDataType_t type) {
  return static_cast<unsigned>(type) < ncclNumTypes ? kTypes[type].bytes : 0;
}

size_t bytes_sent(const Call& call, int rank, int ranks) {
  const Shape& shape = shape_of(call.what);
  if (shape.only_root_sends && rank != call.root) return 0;
  return call.count * size_of(call.type) * static_cast<size_t>(shape.sends_parts ? ranks : 1);
}

size_t bytes_received(const Call& call, int rank, int ranks) {
  const Shape& shape = shape_of(call.what);
  if (shape.only_root_receives && rank != call.root) return 0;
  return call.count * size_of(call.type) * static_cast<size_t>(shape.receives_parts ? ranks : 1);
}

std::string describe(const Call& call) {
  const Shape& shape = shape_of(call.what);
  std::string text =
      std::string(shape.name) + " of " + std::to_string(call.count) + " " + kTypes[call.type].name;
  if (shape.reduces) text += std::string(" (") + kOps[static_cast<size_t>(call.op)] + ")";
  if (shape.has_root) text += " with root " + std::to_string(call.root);
  return text;
}

std::vector<Bytes> compute(const Call& call, const std::vector<Bytes>& inputs) {
  const Shape& shape = shape_of(call.what);
  const size_t ranks = inputs.size(), bytes = call.count * size_of(call.type);
  const Bytes combined = shape.reduces ? reduced(call, inputs) : Bytes();
  std::vector<Bytes> results(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (bytes_received(call, static_cast<int>(rank), static_cast<int>(ranks)) == 0) continue;
    if (shape.reduces) {
      results[rank] = shape.sends_parts ? part(combined, rank, bytes) : combined;
    } else if (shape.receives_parts) {
      for (size_t from = 0; from < ranks; ++from) {
        const Bytes piece = part(inputs[from], shape.sends_parts ? rank : 0, bytes);
        results[rank].insert(results[rank].end(), piece.begin(), piece.end());
      }
    } else {
      results[rank] =
          part(inputs[static_cast<size_t>(call.root)], shape.sends_parts ? rank : 0, bytes);
    }
  }
  return results;
}

void scale(ncclDataType_t type, Bytes& elements, const void* scalar) {
  kTypes[type].scale(elements, scalar);
}

}  // namespace testnccl
