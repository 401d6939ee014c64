#include <algorithm>
#include <cfenv>
#include <cmath>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

struct Integer {
  const char* name;
  int bits;
  bool is_signed;
  char letter;
};
constexpr Integer kIntegers[] = {{"u8", 8, false, 'h'},   {"s8", 8, true, 'h'},
                                 {"u16", 16, false, 'h'}, {"s16", 16, true, 'h'},
                                 {"u32", 32, false, 'r'}, {"s32", 32, true, 'r'},
                                 {"u64", 64, false, 'd'}, {"s64", 64, true, 'd'}};

struct Float {
  const char* name;
  char letter;
  int bytes;
};
constexpr Float kFloats[] = {{"f16", 'e', 2}, {"bf16", 'b', 2}, {"f32", 'f', 4}, {"f64", 'g', 8}};

double read(const Float& f, uint64_t w) {
  switch (f.letter) {
    case 'e':
      return half_value(static_cast<uint16_t>(w));
    case 'b':
      return bf16_value(static_cast<uint16_t>(w));
    case 'f':
      return f32(w);
    default:
      return f64(w);
  }
}

// Rounds an exact value to a narrower format.
uint64_t write(const Float& f, __float128 exact, const RoundingMode& mode) {
  switch (f.letter) {
    case 'e':
      return nearest_half(exact, mode.round);
    case 'b':
      return nearest_bf16(exact, mode.round);
    default:
      break;
  }
  std::fesetround(mode.fenv);
  uint64_t result;
  if (f.letter == 'f') {
    // The value comes from an integer of up to 64 bits or a double; an x87 extended double holds
    // both exactly.
    volatile long double wide = static_cast<long double>(exact);
    volatile float narrow = static_cast<float>(wide);
    result = word(static_cast<float>(narrow));
  } else {
    volatile long double wide = static_cast<long double>(exact);
    volatile double narrow = static_cast<double>(wide);
    result = word(static_cast<double>(narrow));
  }
  std::fesetround(FE_TONEAREST);
  return result;
}

// Narrows the NaN of an f64: the sign and the upper bits of the payload are kept.
uint64_t narrow_nan(uint64_t w, const Float& to) {
  const int mantissa = to.letter == 'f' ? 23 : 10, width = 8 * to.bytes;
  const uint64_t exponent = ((uint64_t{1} << (width - 1 - mantissa)) - 1) << mantissa;
  return w >> 63 << (width - 1) | exponent | uint64_t{1} << (mantissa - 1) |
         (w & 0xfffffffffffff) >> (52 - mantissa);
}

double to_integral(double v, const RoundingMode& mode) {
  switch (mode.round) {
    case Round::kZero:
      return std::trunc(v);
    case Round::kDown:
      return std::floor(v);
    case Round::kUp:
      return std::ceil(v);
    default:
      return std::nearbyint(v);
  }
}

uint64_t float_to_integer(double v, const Float& from, const Integer& to,
                          const RoundingMode& mode) {
  if (std::isnan(v)) return from.bytes == 8 || to.bits == 64 ? uint64_t{1} << (to.bits - 1) : 0;
  const double r = to_integral(v, mode);
  const __int128 low = to.is_signed ? -(static_cast<__int128>(1) << (to.bits - 1)) : 0;
  const __int128 high = (static_cast<__int128>(1) << (to.bits - (to.is_signed ? 1 : 0))) - 1;
  if (r <= static_cast<double>(low)) return cut(low, 64);
  if (r >= static_cast<double>(high)) return cut(high, 64);
  return cut(static_cast<__int128>(r), 64);
}

// Extends a value of a narrow type to the width of its register.
uint64_t fill(uint64_t value, const Integer& type) {
  const int width = type.letter == 'h' ? 16 : type.letter == 'r' ? 32 : 64;
  return cut(integer_value(value, type.bits, type.is_signed), width);
}

void add_integers(CaseList* list) {
  for (const Integer& to : kIntegers) {
    for (const Integer& from : kIntegers) {
      const std::string types = std::string(to.name) + "." + from.name;
      const std::string d(1, to.letter), s(1, from.letter);
      list->add("cvt." + types, "cvt." + types + " D0, S0;", d, s, [=](In in, Out out) {
        out[0] = fill(cut(integer_value(in[0], from.bits, from.is_signed), 64), to);
      });
      // ptxas refuses .sat if no value can be out of range.
      const bool contained = from.is_signed == to.is_signed
                                 ? from.bits <= to.bits
                                 : !from.is_signed && from.bits < to.bits;
      if (contained) continue;
      list->add("cvt.sat." + types, "cvt.sat." + types + " D0, S0;", d, s, [=](In in, Out out) {
        const __int128 low = to.is_signed ? -(static_cast<__int128>(1) << (to.bits - 1)) : 0;
        const __int128 high = (static_cast<__int128>(1) << (to.bits - (to.is_signed ? 1 : 0))) - 1;
        const __int128 v = integer_value(in[0], from.bits, from.is_signed);
        out[0] = fill(cut(std::min(std::max(v, low), high), 64), to);
      });
    }
  }
}

void add_integer_float(CaseList* list) {
  for (const Integer& i : kIntegers) {
    for (const Float& f : kFloats) {
      for (const RoundingMode& mode : kRoundingModes) {
        const bool bf16 = f.letter == 'b';
        if (bf16 && (mode.round != Round::kNearest || i.bits == 8)) continue;
        const std::string d(1, f.letter), s(1, i.letter);
        const std::string up = std::string("cvt.") + mode.name + "." + f.name + "." + i.name;
        list->add(up, up + " D0, S0;", d, s, [=](In in, Out out) {
          const __int128 v = integer_value(in[0], i.bits, i.is_signed);
          out[0] = write(f, static_cast<__float128>(v), mode);
        });
        const std::string down = std::string("cvt.") + mode.name + "i." + i.name + "." + f.name;
        list->add(down, down + " D0, S0;", s, d, [=](In in, Out out) {
          out[0] = fill(float_to_integer(read(f, in[0]), f, i, mode), i);
        });
        if (f.letter != 'f') continue;
        const std::string ftz = std::string("cvt.") + mode.name + "i.ftz." + i.name + ".f32";
        list->add(ftz, ftz + " D0, S0;", s, d, [=](In in, Out out) {
          out[0] = fill(float_to_integer(flushed(f32(in[0])), f, i, mode), i);
        });
      }
    }
  }
}

void add_floats(CaseList* list) {
  for (const RoundingMode& mode : kRoundingModes) {
    const std::string m = mode.name;
    const auto narrow = [&](const Float& to, const Float& from, const std::string& options,
                            bool ftz, bool sat) {
      const std::string name = "cvt." + m + options + "." + to.name + "." + from.name;
      list->add(name, name + " D0, S0;", std::string(1, to.letter), std::string(1, from.letter),
                [=](In in, Out out) {
                  double v = read(from, in[0]);
                  if (ftz && to.letter == 'b') v = flushed(static_cast<float>(v));  // not for f16
                  if (sat) v = std::isnan(v) ? 0.0 : std::min(std::max(v, 0.0), 1.0) + 0.0;
                  out[0] = std::isnan(v) ? (to.letter == 'f' ? 0x7fffffff : 0x7fff)
                                         : write(to, static_cast<__float128>(v), mode);
                  if (ftz && to.letter == 'f' && !std::isnan(v))
                    out[0] = word(flushed(f32(out[0])));
                  if (std::isnan(v) && from.letter == 'g' && !sat) out[0] = narrow_nan(in[0], to);
                });
    };
    narrow(kFloats[2], kFloats[3], "", false, false);  // f32.f64
    narrow(kFloats[2], kFloats[3], ".ftz", true, false);
    narrow(kFloats[2], kFloats[3], ".sat", false, true);
    narrow(kFloats[0], kFloats[2], "", false, false);  // f16.f32
    narrow(kFloats[0], kFloats[2], ".ftz", true, false);
    narrow(kFloats[1], kFloats[2], ".ftz", true, false);  // bf16.f32
    narrow(kFloats[0], kFloats[3], "", false, false);     // f16.f64
    if (mode.round == Round::kNearest || mode.round == Round::kZero) {
      narrow(kFloats[1], kFloats[2], "", false, false);  // bf16.f32
      for (const bool bf : {false, true}) {
        const std::string type = bf ? "bf16" : "f16";
        for (const bool relu : {false, true}) {
          const std::string pair = "cvt." + m + (relu ? ".relu." : ".") + type + "x2.f32";
          list->add(pair, pair + " D0, S0, S1;", bf ? "B" : "E", "ff", [=](In in, Out out) {
            out[0] = 0;
            for (int k = 0; k < 2; ++k) {
              float v = f32(in[1 - k]);
              if (relu && v < 0) v = 0;
              out[0] |= static_cast<uint64_t>(std::isnan(v) ? 0x7fff
                                              : bf          ? nearest_bf16(v, mode.round)
                                                            : nearest_half(v, mode.round))
                        << (16 * k);
              if (relu && (out[0] >> (16 * k) & 0xffff) == 0x8000)
                out[0] &= ~(uint64_t{0x8000} << (16 * k));
            }
          });
        }
      }
    }
    for (const Float& f : kFloats) {
      if (f.letter == 'b') continue;
      const std::string name = "cvt." + m + "i." + f.name + "." + f.name;
      list->add(name, name + " D0, S0;", std::string(1, f.letter), std::string(1, f.letter),
                [=](In in, Out out) {
                  const double v = read(f, in[0]);
                  out[0] = std::isnan(v) && f.letter != 'g'
                               ? (f.letter == 'f' ? 0x7fffffff : 0x7fff)
                               : write(f, static_cast<__float128>(to_integral(v, mode)), mode);
                  if (to_integral(v, mode) == 0 && std::signbit(v))
                    out[0] = uint64_t{1} << (8 * f.bytes - 1);
                });
    }
  }
  struct Widening {
    const char* to;
    const char* from;
    char d, s;
  };
  for (const Widening& w : {Widening{"f64", "f32", 'g', 'f'}, Widening{"f32", "f16", 'f', 'e'},
                            Widening{"f64", "f16", 'g', 'e'}, Widening{"f32", "bf16", 'f', 'b'}}) {
    const std::string name = std::string("cvt.") + w.to + "." + w.from;
    list->add(name, name + " D0, S0;", std::string(1, w.d), std::string(1, w.s),
              [=](In in, Out out) {
                const double v = w.s == 'f'   ? f32(in[0])
                                 : w.s == 'e' ? half_value(static_cast<uint16_t>(in[0]))
                                              : bf16_value(static_cast<uint16_t>(in[0]));
                out[0] = w.d == 'g' ? word(v) : word(static_cast<float>(v));
                if (w.s == 'b') out[0] = in[0] << 16;  // NaNs as well
              });
  }
  list->add("cvt.ftz.f64.f32", "cvt.ftz.f64.f32 D0, S0;", "g", "f", [](In in, Out out) {
    out[0] = word(static_cast<double>(f32(word(flushed(f32(in[0]))))));
  });
  list->add("cvt.sat.f32.f32", "cvt.sat.f32.f32 D0, S0;", "f", "f", [](In in, Out out) {
    const float v = f32(in[0]);
    out[0] = word(v > 0 ? std::min(v, 1.0f) : 0.0f);
  });
  list->add("cvt.rna.tf32.f32", "cvt.rna.tf32.f32 D0, S0;", "r", "w", [](In in, Out out) {
    out[0] = (in[0] + 0x1000) & 0xffffe000;  // adds half of the last kept bit: ties round away from zero
  });
}

void add_packs(CaseList* list) {
  struct Pack {
    const char* type;
    int bits;
    bool is_signed;
  };
  for (const Pack& p :
       {Pack{"u16", 16, false}, Pack{"s16", 16, true}, Pack{"u8", 8, false}, Pack{"s8", 8, true}}) {
    const bool bytes = p.bits == 8;
    const std::string name = std::string("cvt.pack.sat.") + p.type + ".s32" + (bytes ? ".b32" : "");
    list->add(name, name + (bytes ? " D0, S0, S1, S2;" : " D0, S0, S1;"), "r", bytes ? "rrr" : "rr",
              [=](In in, Out out) {
                const __int128 low = p.is_signed ? -(1 << (p.bits - 1)) : 0,
                               high = (1 << (p.bits - (p.is_signed ? 1 : 0))) - 1;
                const auto saturated = [&](uint64_t w) {
                  return cut(std::min(std::max(integer_value(w, 32, true), low), high), p.bits);
                };
                out[0] = saturated(in[0]) << p.bits | saturated(in[1]);
                if (bytes) out[0] = (out[0] | in[2] << 16) & 0xffffffff;
              });
  }
}

// The value of an 8-bit float: e5m2, otherwise e4m3.
double byte_float(int bits, bool e5m2) {
  const int exponent = e5m2 ? bits >> 2 & 31 : bits >> 3 & 15;
  const int fraction = e5m2 ? bits & 3 : bits & 7;
  const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (e5m2 && exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (!e5m2 && (bits & 0x7f) == 0x7f) return NAN;
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias - mantissa)
                       : sign * std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}
int nearest_byte(double v, bool e5m2) {
  if (std::isnan(v)) return 0x7f;
  const int greatest = e5m2 ? 0x7b : 0x7e;
  const int sign = std::signbit(v) ? 0x80 : 0;
  const double magnitude = std::min(std::abs(v), byte_float(greatest, e5m2));
  int best = 0;
  for (int k = 1; k <= greatest; ++k) {
    const double d = std::abs(byte_float(k, e5m2) - magnitude),
                 b = std::abs(byte_float(best, e5m2) - magnitude);
    if (d < b || (d == b && (k & 1) == 0)) best = k;
  }
  return sign | best;
}

void add_bytes(CaseList* list) {
  for (const bool e5m2 : {false, true}) {
    const std::string type = e5m2 ? "e5m2x2" : "e4m3x2";
    list->add("cvt.rn.satfinite." + type + ".f32", "cvt.rn.satfinite." + type + ".f32 D0, S0, S1;",
              "h", "ww", [=](In in, Out out) {
                out[0] = static_cast<uint64_t>(nearest_byte(f32(in[0]), e5m2) << 8 |
                                               nearest_byte(f32(in[1]), e5m2));
              });
    list->add("cvt.rn.satfinite." + type + ".f16x2", "cvt.rn.satfinite." + type + ".f16x2 D0, S0;",
              "h", "E", [=](In in, Out out) {
                out[0] = static_cast<uint64_t>(
                    nearest_byte(half_value(static_cast<uint16_t>(in[0] >> 16)), e5m2) << 8 |
                    nearest_byte(half_value(static_cast<uint16_t>(in[0])), e5m2));
              });
    list->add("cvt.rn.f16x2." + type, "cvt.rn.f16x2." + type + " D0, S0;", "E", "h",
              [=](In in, Out out) {
                const auto half = [&](uint64_t b) {
                  return static_cast<uint64_t>(
                      nearest_half(byte_float(static_cast<int>(b & 0xff), e5m2)));
                };
                out[0] = half(in[0] >> 8) << 16 | half(in[0]);
              });
  }
}

}  // namespace

void add_convert_cases(CaseList* list) {
  list->family("cvt integer");
  add_integers(list);
  list->family("cvt integer float");
  add_integer_float(list);
  list->family("cvt float");
  add_floats(list);
  add_packs(list);
  add_bytes(list);
}

}  // namespace softgpu::test
