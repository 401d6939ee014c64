// The builder with which the files ptx_cases_*.cpp define their cases.
#pragma once

#include <array>
#include <cfenv>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/ptx_cases.h"

namespace softgpu::test {

// A generator of pseudo-random numbers, with the same numbers on every machine.
class Random {
 public:
  explicit Random(std::string_view seed);
  uint64_t next();
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }

 private:
  uint64_t state_;
};

// The words of one thread.
using In = const uint64_t*;
using Out = uint64_t*;
using Reference = std::function<void(In, Out)>;
using WholeReference = std::function<void(const std::vector<uint64_t>&, std::vector<uint64_t>*)>;

struct Tolerance {
  double ulp = 0;
  double relative = 0;
  double absolute = 0;
};

// `code` names destinations D0, D1 and sources S0, S1, ... `destinations` and `sources` have one
// letter for each. The letter chooses the register and, for a source, typical inputs. It is a
// letter of Word; a source may also have one of these:
//   n        a 32-bit shift amount or count
//   y, z, x  a nonzero divisor of 16, 32 or 64 bits
//   t, v, w  an f32: in [-4, 4], positive, or of moderate magnitude
class CaseList {
 public:
  explicit CaseList(std::vector<PtxCase>* cases) : cases_(cases) {}
  void family(std::string name) { family_ = std::move(name); }
  void add(const std::string& name, const std::string& code, const std::string& destinations,
           const std::string& sources, const Reference& reference, Tolerance tolerance = {});
  // For results that depend on other threads.
  void add_whole(const std::string& name, const std::string& code, const std::string& destinations,
                 const std::string& sources, const WholeReference& reference);
  // For inputs that must have certain values: fix(in, random) is called on every thread's words.
  void add_fixed(const std::string& name, const std::string& code, const std::string& destinations,
                 const std::string& sources, const std::function<void(uint64_t*, Random&)>& fix,
                 const Reference& reference, Tolerance tolerance = {});

 private:
  PtxCase* make(const std::string& name, const std::string& code, const std::string& destinations,
                const std::string& sources);

  std::vector<PtxCase>* cases_;
  std::string family_;
};

void add_integer_cases(CaseList* list);
void add_bit_cases(CaseList* list);
void add_compare_cases(CaseList* list);
void add_float_cases(CaseList* list);
void add_half_cases(CaseList* list);
void add_convert_cases(CaseList* list);
void add_memory_cases(CaseList* list);
void add_tiny_cases(CaseList* list);
void add_warp_cases(CaseList* list);

// Integer types by PTX name.
struct IntegerType {
  const char* name;
  int bits;
  bool is_signed;
  char letter;       // of its register
  char wide_letter;  // of a register twice as wide
};
inline constexpr std::array<IntegerType, 6> kIntegerTypes = {{{"u16", 16, false, 'h', 'r'},
                                                              {"s16", 16, true, 'h', 'r'},
                                                              {"u32", 32, false, 'r', 'd'},
                                                              {"s32", 32, true, 'r', 'd'},
                                                              {"u64", 64, false, 'd', 'q'},
                                                              {"s64", 64, true, 'd', 'q'}}};
inline __int128 integer_value(uint64_t bits, int width, bool is_signed) {
  if (width < 64) bits &= (uint64_t{1} << width) - 1;
  const bool negative = is_signed && (bits >> (width - 1) & 1) != 0;
  return negative ? static_cast<__int128>(bits) - (static_cast<__int128>(1) << width)
                  : static_cast<__int128>(bits);
}
inline uint64_t cut(__int128 value, int width) {
  const auto bits = static_cast<uint64_t>(value);
  return width == 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

template <class To, class From>
To cast_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float f32(uint64_t word) { return cast_bits<float>(static_cast<uint32_t>(word)); }
inline double f64(uint64_t word) { return cast_bits<double>(word); }
inline uint64_t word(float v) { return v != v ? 0x7fffffffu : cast_bits<uint32_t>(v); }
inline uint64_t word(double v) { return cast_bits<uint64_t>(v); }
inline float flushed(float v) {
  return (cast_bits<uint32_t>(v) & 0x7f800000) == 0
             ? cast_bits<float>(cast_bits<uint32_t>(v) & 0x80000000)
             : v;
}

// Rounding to small formats, by a search among all their values.
float half_value(uint16_t bits);
float bf16_value(uint16_t bits);
enum class Round { kNearest, kZero, kDown, kUp };
struct RoundingMode {
  const char* name;  // its modifier in PTX
  Round round;
  int fenv;
};
inline constexpr RoundingMode kRoundingModes[] = {{"rn", Round::kNearest, FE_TONEAREST},
                                                  {"rz", Round::kZero, FE_TOWARDZERO},
                                                  {"rm", Round::kDown, FE_DOWNWARD},
                                                  {"rp", Round::kUp, FE_UPWARD}};
uint16_t nearest_half(__float128 exact, Round round = Round::kNearest);
uint16_t nearest_bf16(__float128 exact, Round round = Round::kNearest);

// Whether .ftz flushes a result. It flushes if the result, rounded to `precision` bits without a
// lower bound for the exponent, is below the smallest normal number, 2^least. (Subnormal numbers
// have wider steps. After rounding to these steps, some results that hardware flushes would count
// as normal.)
bool becomes_subnormal(__float128 exact, int precision, int least, Round round);

std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace softgpu::test
