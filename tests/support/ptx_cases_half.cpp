#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

// A 16-bit format. value(bits) for bits = 0, 1, 2, ... below `infinity` gives its finite
// non-negative values in ascending order.
struct Format {
  float (*value)(uint16_t);
  uint16_t infinity;
};
constexpr Format kHalf{half_value, 0x7c00};
constexpr Format kBf16{bf16_value, 0x7f80};

uint16_t nearest(const Format& format, __float128 exact, Round round) {
  if (exact != exact) return 0x7fff;
  const bool negative = exact < 0 || (exact == 0 && __builtin_signbit(static_cast<double>(exact)));
  const uint16_t sign = negative ? 0x8000 : 0;
  const __float128 magnitude = exact < 0 ? -exact : exact;
  if (magnitude > static_cast<__float128>(std::numeric_limits<double>::max()))
    return sign | format.infinity;
  uint16_t low = 0, high = format.infinity;  // bisection for the greatest value <= magnitude
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (static_cast<__float128>(format.value(middle)) <= magnitude ? low : high) = middle;
  }
  const __float128 below = format.value(low);
  if (below == magnitude) return sign | low;
  // The next greater value; for the greatest finite value, the value that the next exponent would
  // have.
  const __float128 step = low == 0 ? static_cast<__float128>(format.value(1))
                                   : below - format.value(static_cast<uint16_t>(low - 1));
  const __float128 above =
      high == format.infinity ? below + step : static_cast<__float128>(format.value(high));
  bool up = false;
  switch (round) {
    case Round::kNearest: {
      const __float128 down = magnitude - below, rise = above - magnitude;
      up = rise < down || (rise == down && (low & 1) != 0);
      break;
    }
    case Round::kZero:
      break;
    case Round::kDown:
      up = negative;
      break;
    case Round::kUp:
      up = !negative;
      break;
  }
  return sign | (up ? high : low);
}

// a * b + c. If 113 bits do not hold the sum, moves it slightly in the direction of the exact
// value, so that a tie is later rounded to the correct side.
__float128 fused(__float128 a, __float128 b, __float128 c) {
  const __float128 product = a * b;
  const __float128 sum = product + c;
  const __float128 back = sum - product;
  const __float128 error = (product - (sum - back)) + (c - back);
  constexpr __float128 kTiny = static_cast<__float128>(0x1p-100);
  if (error > 0) return sum + (sum < 0 ? -sum : sum) * kTiny;
  if (error < 0) return sum - (sum < 0 ? -sum : sum) * kTiny;
  return sum;
}

struct Kind {
  const char* name;
  const Format* format;
  char letter, pair_letter;
  bool is_half;
};
const Kind kKinds[] = {{"f16", &kHalf, 'e', 'E', true}, {"bf16", &kBf16, 'b', 'B', false}};

using Scalar = std::function<uint16_t(uint16_t, uint16_t, uint16_t)>;

// Adds the form for single elements and the form for pairs.
void add_both(CaseList* list, const Kind& kind, const std::string& op, int operands,
              const Scalar& f, Tolerance tolerance = {}) {
  const char* tail[] = {"", " D0, S0;", " D0, S0, S1;", " D0, S0, S1, S2;"};
  for (const bool pair : {false, true}) {
    const std::string name = op + "." + kind.name + (pair ? "x2" : "");
    const std::string letter(1, pair ? kind.pair_letter : kind.letter);
    std::string sources;
    for (int k = 0; k < operands; ++k) sources += letter;
    list->add(
        name, name + tail[operands], letter, sources,
        [=](In in, Out out) {
          const auto at = [&](int k, int shift) {
            return static_cast<uint16_t>(k < operands ? in[k] >> shift : 0);
          };
          out[0] = f(at(0, 0), at(1, 0), at(2, 0));
          if (pair) out[0] |= static_cast<uint64_t>(f(at(0, 16), at(1, 16), at(2, 16))) << 16;
        },
        tolerance);
  }
}

uint16_t flush_half(uint16_t v) { return (v & 0x7c00) == 0 ? v & 0x8000 : v; }

void add_kind(CaseList* list, const Kind& kind) {
  const Format& format = *kind.format;
  const auto value = [&format](uint16_t v) { return static_cast<__float128>(format.value(v)); };
  const auto round = [&format](__float128 v) { return nearest(format, v, Round::kNearest); };
  struct Op {
    const char* name;
    __float128 (*f)(__float128, __float128, __float128);
    int operands;
  };
  static constexpr Op kOps[] = {
      {"add", [](__float128 a, __float128 b, __float128) { return a + b; }, 2},
      {"sub", [](__float128 a, __float128 b, __float128) { return a - b; }, 2},
      {"mul", [](__float128 a, __float128 b, __float128) { return a * b; }, 2},
      {"fma", fused, 3}};
  for (const Op& op : kOps) {
    const auto f = op.f;
    const std::string rounding = op.operands == 3 ? ".rn" : "";
    add_both(list, kind, op.name + rounding, op.operands, [=](uint16_t a, uint16_t b, uint16_t c) {
      return round(f(value(a), value(b), value(c)));
    });
    if (op.operands == 3) {
      add_both(list, kind, "fma.rn.relu", 3, [=](uint16_t a, uint16_t b, uint16_t c) -> uint16_t {
        const uint16_t r = round(f(value(a), value(b), value(c)));
        return (r & 0x8000) != 0 && r != 0xffff ? 0 : r;
      });
    }
    if (!kind.is_half) continue;
    add_both(list, kind, std::string(op.name) + ".rn.ftz", op.operands,
             [=](uint16_t a, uint16_t b, uint16_t c) -> uint16_t {
               const __float128 exact =
                   f(value(flush_half(a)), value(flush_half(b)), value(flush_half(c)));
               const bool flush = becomes_subnormal(exact, 11, -14, Round::kNearest);
               return round(exact) & (flush ? 0x8000 : 0xffff);
             });
    add_both(list, kind, std::string(op.name) + ".rn.sat", op.operands,
             [=](uint16_t a, uint16_t b, uint16_t c) -> uint16_t {
               const uint16_t r = round(f(value(a), value(b), value(c)));
               if ((r & 0x7fff) > 0x7c00 || (r & 0x8000) != 0) return 0;
               return std::min<uint16_t>(r, 0x3c00);
             });
  }
  const auto is_nan = [&format](uint16_t v) { return (v & 0x7fff) > format.infinity; };
  for (const bool is_max : {false, true}) {
    for (const bool nan : {false, true}) {
      for (const bool xorsign : {false, true}) {
        const std::string name = std::string(is_max ? "max" : "min") + (nan ? ".NaN" : "") +
                                 (xorsign ? ".xorsign.abs" : "");
        add_both(list, kind, name, 2, [=](uint16_t a, uint16_t b, uint16_t) -> uint16_t {
          const uint16_t sign = xorsign ? (a ^ b) & 0x8000 : 0;
          if (xorsign) a &= 0x7fff, b &= 0x7fff;
          if (is_nan(a) || is_nan(b)) {
            if (nan || (is_nan(a) && is_nan(b))) return 0x7fff;
            return static_cast<uint16_t>(is_nan(a) ? b : a) | sign;
          }
          // Sign-magnitude order, -0 below +0.
          const auto order = [](uint16_t v) {
            return (v & 0x8000) != 0 ? -1 - (v & 0x7fff) : v & 0x7fff;
          };
          const bool take_a = is_max ? order(a) > order(b) : order(a) < order(b);
          return (take_a ? a : b) | sign;
        });
      }
    }
  }
  add_both(list, kind, "abs", 1, [=](uint16_t a, uint16_t, uint16_t) -> uint16_t {
    return is_nan(a) ? 0x7fff : a & 0x7fff;
  });
  add_both(list, kind, "neg", 1, [=](uint16_t a, uint16_t, uint16_t) -> uint16_t {
    return is_nan(a) ? 0x7fff : a ^ 0x8000;
  });
  add_both(list, kind, "tanh.approx", 1,
           [=](uint16_t a, uint16_t, uint16_t) {
             return round(std::tanh(static_cast<double>(value(a))));
           },
           {1, 0x1p-8, 0x1p-10});
  add_both(list, kind, kind.is_half ? "ex2.approx" : "ex2.approx.ftz", 1,
           [=](uint16_t a, uint16_t, uint16_t) {
             const uint16_t r = round(std::exp2(
                 static_cast<double>(value(!kind.is_half && (a & 0x7f80) == 0 ? a & 0x8000 : a))));
             return !kind.is_half && (r & 0x7f80) == 0 ? static_cast<uint16_t>(r & 0x8000) : r;
           },
           {1, 0x1p-7, 0});
}

}  // namespace

float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 0x3ff;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                       : sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}
float bf16_value(uint16_t bits) { return cast_bits<float>(static_cast<uint32_t>(bits) << 16); }
uint16_t nearest_half(__float128 exact, Round round) { return nearest(kHalf, exact, round); }
uint16_t nearest_bf16(__float128 exact, Round round) { return nearest(kBf16, exact, round); }

void add_half_cases(CaseList* list) {
  for (const Kind& kind : kKinds) {
    list->family(kind.name);
    add_kind(list, kind);
  }
}

}  // namespace softgpu::test
