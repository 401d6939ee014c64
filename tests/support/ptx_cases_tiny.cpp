// Results around the smallest normal number, where rounding decides whether .ftz flushes.
#include <algorithm>
#include <cfenv>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

// A format, by its precision and the exponent of its smallest normal number.
struct Format {
  const char* name;
  int precision;
  int least;
  char letter;
};
constexpr Format kSingle{"f32", 24, -126, 'f'};
constexpr Format kHalf{"f16", 11, -14, 'e'};

__float128 value_of(const Format& format, uint64_t bits) {
  return format.letter == 'f' ? static_cast<__float128>(f32(bits))
                              : half_value(static_cast<uint16_t>(bits));
}
uint64_t sign_of(const Format& format) { return format.letter == 'f' ? 0x80000000u : 0x8000u; }
uint64_t flush(const Format& format, uint64_t bits) {
  const uint64_t magnitude = bits & (sign_of(format) - 1);
  return magnitude >> (format.precision - 1) == 0 ? bits & sign_of(format) : bits;
}

// Encodes a normal number: `significand` has `precision` bits, and its lowest bit is worth
// 2^exponent.
uint64_t encode(const Format& format, uint64_t significand, int exponent, bool negative) {
  const int biased = exponent - format.least + format.precision;
  return (negative ? sign_of(format) : 0) |
         static_cast<uint64_t>(biased) << (format.precision - 1) |
         (significand & ((uint64_t{1} << (format.precision - 1)) - 1));
}

uint64_t rounded(const Format& format, __float128 exact, const RoundingMode& mode) {
  if (format.letter == 'e') return nearest_half(exact, mode.round);
  std::fesetround(mode.fenv);
  volatile __float128 wide = exact;
  volatile float narrow = static_cast<float>(wide);
  std::fesetround(FE_TONEAREST);
  return word(static_cast<float>(narrow));
}

enum class Operation { kMul, kFma, kDiv };
constexpr struct {
  Operation operation;
  const char* name;
  int operands;
} kOperations[] = {
    {Operation::kMul, "mul", 2}, {Operation::kFma, "fma", 3}, {Operation::kDiv, "div", 2}};

uint64_t significand(const Format& format, Random& random) {
  const uint64_t top = uint64_t{1} << (format.precision - 1);
  return top + random.next() % top;
}

// Operands whose product or quotient is within some units of the smallest normal number.
void choose(const Format& format, Operation operation, Random& random, uint64_t operand[3]) {
  const int p = format.precision;
  const int lowest = format.least - (p - 1);
  const uint64_t top = uint64_t{1} << (p - 1);
  const uint64_t x = significand(format, random);
  const int exponent = lowest + static_cast<int>(random.below(static_cast<uint32_t>(-p - lowest)));
  const bool negative = random.below(2) != 0;
  operand[0] = encode(format, x, exponent, random.below(2) != 0);
  if (operation == Operation::kDiv) {
    const uint64_t y = std::max(x - random.below(3), top);
    operand[0] = encode(format, y, exponent, random.below(2) != 0);
    operand[1] = encode(format, x, exponent - format.least, negative);
    return;
  }
  uint64_t y = (uint64_t{1} << (2 * p - 1)) / x + random.below(5) - 2;
  y = std::min(std::max(y, top), 2 * top - 1);
  operand[1] = encode(format, y, format.least - (2 * p - 1) - exponent, negative);
  switch (operation == Operation::kFma ? random.below(3) : 0) {
    case 0:
      operand[2] = random.below(2) * sign_of(format);
      break;
    case 1:  // adds a subnormal number
      operand[2] = 1 + random.below(3);
      break;
    default: {  // one of the two smallest normal numbers, minus a small product
      operand[2] = encode(format, top + random.below(2), lowest, negative);
      const int other = static_cast<int>(random.below(5)) - p - 3;
      operand[0] = encode(format, x, lowest, false);
      operand[1] = encode(format, random.below(2) != 0 ? top : significand(format, random),
                          other - (p - 1), !negative);
      break;
    }
  }
}

uint64_t expected(const Format& format, Operation operation, const RoundingMode& mode, bool ftz,
                  const uint64_t operand[3]) {
  __float128 v[3];
  for (int k = 0; k < 3; ++k) v[k] = value_of(format, ftz ? flush(format, operand[k]) : operand[k]);
  const __float128 exact = operation == Operation::kDiv   ? v[0] / v[1]
                           : operation == Operation::kMul ? v[0] * v[1]
                                                          : v[0] * v[1] + v[2];
  const uint64_t result = rounded(format, exact, mode);
  return ftz && becomes_subnormal(exact, format.precision, format.least, mode.round)
             ? result & sign_of(format)
             : result;
}

void add_operations(CaseList* list, const Format& format, bool pair) {
  for (const auto& [operation, op, operands] : kOperations) {
    if (format.letter == 'e' && operation == Operation::kDiv) continue;
    for (const RoundingMode& mode : kRoundingModes) {
      if (format.letter == 'e' && mode.round != Round::kNearest) continue;
      for (const bool ftz : {false, true}) {
        const std::string name = std::string(op) + "." + mode.name + (ftz ? ".ftz." : ".") +
                                 format.name + (pair ? "x2" : "");
        const char letter = pair ? 'E' : format.letter;
        const int count = operands;
        list->add_fixed(
            name, name + (count == 3 ? " D0, S0, S1, S2;" : " D0, S0, S1;"), std::string(1, letter),
            std::string(static_cast<size_t>(count), letter),
            [format, operation = operation, count, pair](uint64_t* in, Random& random) {
              for (int k = 0; k < count; ++k) in[k] = 0;
              for (int shift = 0; shift < (pair ? 32 : 16); shift += 16) {
                uint64_t operand[3] = {};
                choose(format, operation, random, operand);
                for (int k = 0; k < count; ++k) in[k] |= operand[k] << shift;
              }
            },
            [format, operation = operation, count, pair, mode, ftz](In in, Out out) {
              out[0] = 0;
              for (int shift = 0; shift < (pair ? 32 : 16); shift += 16) {
                uint64_t operand[3] = {};
                for (int k = 0; k < count; ++k)
                  operand[k] = in[k] >> shift & (sign_of(format) * 2 - 1);
                out[0] |= expected(format, operation, mode, ftz, operand) << shift;
              }
            });
      }
    }
  }
}

void add_narrowing(CaseList* list) {
  for (const RoundingMode& mode : kRoundingModes) {
    const std::string name = std::string("cvt.") + mode.name + ".ftz.f32.f64";
    list->add_fixed(
        name, name + " D0, S0;", "f", "g",
        // 2^-126 minus `off` units of the last place of f64. `off` is a power of two from 2^24 to
        // 2^31, plus -1, 0 or 1. (At 2^28, rounding to 24 bits has a tie.)
        [](uint64_t* in, Random& random) {
          const uint64_t off = (uint64_t{1} << (24 + random.below(8))) + random.below(3) - 1;
          in[0] = (0x3810000000000000 - off) | static_cast<uint64_t>(random.below(2)) << 63;
        },
        [mode](In in, Out out) {
          const __float128 exact = f64(in[0]);
          out[0] = rounded(kSingle, exact, mode);
          if (becomes_subnormal(exact, 24, -126, mode.round)) out[0] &= 0x80000000;
        });
  }
}

}  // namespace

void add_tiny_cases(CaseList* list) {
  list->family("smallest normal");
  add_operations(list, kSingle, false);
  add_operations(list, kHalf, false);
  add_operations(list, kHalf, true);
  add_narrowing(list);
}

}  // namespace softgpu::test
