#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

// Volatile operands keep the compiler from computing at compile time, in the wrong rounding mode.
template <class T, class F>
T in_mode(int mode, F f) {
  std::fesetround(mode);
  volatile T result = f();
  std::fesetround(FE_TONEAREST);
  return result;
}

float read(uint64_t w, bool ftz, float) { return ftz ? flushed(f32(w)) : f32(w); }
double read(uint64_t w, bool, double) { return f64(w); }
uint64_t write(float v, bool ftz, bool sat) {
  if (ftz) v = flushed(v);
  if (sat) v = v > 0 ? (v < 1 ? v : 1.0f) : 0.0f;
  return word(v);
}
uint64_t write(double v, bool, bool) { return word(v); }

template <class T>
T operate(int op, T a_value, T b_value, T c_value) {
  volatile T a = a_value, b = b_value, c = c_value;
  switch (op) {
    case 0:
      return a + b;
    case 1:
      return a - b;
    case 2:
      return a * b;
    case 3:
      return std::fma(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c));
    case 4:
      return a / b;
    case 5:
      return T{1} / a;
    default:
      return std::sqrt(static_cast<T>(a));
  }
}

std::string sources_of(const std::string& letter, int count) {
  std::string sources;
  for (int k = 0; k < count; ++k) sources += letter;
  return sources;
}

// PTX's min and max.
template <class T>
T extreme(T a, T b, bool is_max, bool nan_wins) {
  if (std::isnan(a) || std::isnan(b)) {
    if (nan_wins || (std::isnan(a) && std::isnan(b))) return std::numeric_limits<T>::quiet_NaN();
    return std::isnan(a) ? b : a;
  }
  if (a == 0 && b == 0) return std::signbit(a) != std::signbit(b) ? (is_max ? T{0} : -T{0}) : a;
  return is_max ? std::max(a, b) : std::min(a, b);
}

template <class T>
void add_arithmetic(CaseList* list, const std::string& type, const std::string& letter) {
  struct Op {
    const char* name;
    int operands;
    bool may_saturate;
  };
  constexpr Op kOps[] = {{"add", 2, true},  {"sub", 2, true},  {"mul", 2, true},  {"fma", 3, true},
                         {"div", 2, false}, {"rcp", 1, false}, {"sqrt", 1, false}};
  constexpr bool kSingle = sizeof(T) == 4;
  for (int op = 0; op < 7; ++op) {
    const int operands = kOps[op].operands;
    const char* tail[] = {"", " D0, S0;", " D0, S0, S1;", " D0, S0, S1, S2;"};
    const std::string sources = sources_of(letter, operands);
    for (const RoundingMode& mode : kRoundingModes) {
      for (const bool ftz : {false, true}) {
        for (const bool sat : {false, true}) {
          if ((!kSingle && (ftz || sat)) || (sat && !kOps[op].may_saturate)) continue;
          const std::string name = std::string(kOps[op].name) + "." + mode.name +
                                   (ftz ? ".ftz" : "") + (sat ? ".sat" : "") + "." + type;
          list->add(name, name + tail[operands], letter, sources, [=](In in, Out out) {
            const T a = read(in[0], ftz, T{}), b = operands > 1 ? read(in[1], ftz, T{}) : a,
                    c = operands > 2 ? read(in[2], ftz, T{}) : a;
            out[0] =
                write(in_mode<T>(mode.fenv, [&] { return operate<T>(op, a, b, c); }), ftz, sat);
          });
        }
      }
    }
  }
  list->add("add." + type, "add." + type + " D0, S0, S1;", letter, sources_of(letter, 2),
            [](In in, Out out) {
              out[0] = write(read(in[0], false, T{}) + read(in[1], false, T{}), false, false);
            });
  for (const bool is_max : {false, true}) {
    const std::string name = std::string(is_max ? "max." : "min.") + type;
    list->add(name, name + " D0, S0, S1;", letter, sources_of(letter, 2), [=](In in, Out out) {
      out[0] = write(extreme(read(in[0], false, T{}), read(in[1], false, T{}), is_max, false),
                     false, false);
    });
  }
  list->add("abs." + type, "abs." + type + " D0, S0;", letter, letter, [](In in, Out out) {
    const T v = read(in[0], false, T{});
    out[0] = write(std::isnan(v) ? v : std::abs(v), false, false);
  });
  list->add("neg." + type, "neg." + type + " D0, S0;", letter, letter, [](In in, Out out) {
    const T v = read(in[0], false, T{});
    out[0] = write(std::isnan(v) ? v : -v, false, false);
  });
  constexpr uint64_t kSign = uint64_t{1} << (8 * sizeof(T) - 1);
  list->add("copysign." + type, "copysign." + type + " D0, S0, S1;", letter, sources_of(letter, 2),
            [](In in, Out out) { out[0] = (in[1] & ~kSign) | (in[0] & kSign); });
  struct Test {
    const char* name;
    bool (*holds)(T);
  };
  static constexpr Test kTests[] = {
      {"finite", [](T v) { return std::isfinite(v); }},
      {"infinite", [](T v) { return std::isinf(v); }},
      {"number", [](T v) { return !std::isnan(v); }},
      {"notanumber", [](T v) { return std::isnan(v); }},
      {"normal", [](T v) { return std::isnormal(v) || v == 0; }},
      {"subnormal", [](T v) { return std::fpclassify(v) == FP_SUBNORMAL; }},
  };
  for (const Test& t : kTests) {
    const std::string name = std::string("testp.") + t.name + "." + type;
    const auto holds = t.holds;
    list->add(name, name + " D0, S0;", "p", letter,
              [=](In in, Out out) { out[0] = holds(read(in[0], false, T{})); });
  }
}

void add_min_max(CaseList* list) {
  for (const bool is_max : {false, true}) {
    for (const bool ftz : {false, true}) {
      for (const bool nan : {false, true}) {
        for (const bool xorsign : {false, true}) {
          if (!ftz && !nan && !xorsign) continue;
          const std::string name = std::string(is_max ? "max" : "min") + (ftz ? ".ftz" : "") +
                                   (nan ? ".NaN" : "") + (xorsign ? ".xorsign.abs" : "") + ".f32";
          list->add(name, name + " D0, S0, S1;", "f", "ff", [=](In in, Out out) {
            const float a = read(in[0], ftz, 0.0f), b = read(in[1], ftz, 0.0f);
            float r = xorsign ? extreme(std::abs(a), std::abs(b), is_max, nan)
                              : extreme(a, b, is_max, nan);
            if (xorsign && std::signbit(a) != std::signbit(b)) r = -r;
            out[0] = write(r, ftz, false);
          });
        }
      }
    }
  }
}

using Function = double (*)(double);

void add_approximate(CaseList* list) {
  // The errors that the PTX ISA documents.
  struct Form {
    const char* name;
    const char* source;
    Function f;
    Tolerance tolerance;
  };
  static const Form kForms[] = {
      {"sin.approx", "t", [](double v) { return std::sin(v); }, {0, 0, 0x1p-20}},
      {"cos.approx", "t", [](double v) { return std::cos(v); }, {0, 0, 0x1p-20}},
      {"ex2.approx", "t", [](double v) { return std::exp2(v); }, {2, 0x1p-22, 0}},
      {"lg2.approx", "v", [](double v) { return std::log2(v); }, {0, 0x1p-22, 0x1p-22}},
      {"rcp.approx", "w", [](double v) { return 1 / v; }, {1, 0, 0}},
      {"sqrt.approx", "v", [](double v) { return std::sqrt(v); }, {1, 0x1p-23, 0}},
      {"rsqrt.approx", "v", [](double v) { return 1 / std::sqrt(v); }, {2, 0x1p-22, 0}},
      {"tanh.approx", "t", [](double v) { return std::tanh(v); }, {0, 0x1p-10, 0}},
  };
  for (const Form& form : kForms) {
    for (const bool ftz : {false, true}) {
      if (ftz && std::string(form.name) == "tanh.approx") continue;
      const std::string name = std::string(form.name) + (ftz ? ".ftz" : "") + ".f32";
      const Function f = form.f;
      list->add(
          name, name + " D0, S0;", "f", form.source,
          [=](In in, Out out) { out[0] = word(static_cast<float>(f(read(in[0], ftz, 0.0f)))); },
          form.tolerance);
    }
  }
  for (const char* op : {"div.approx", "div.full"}) {
    for (const bool ftz : {false, true}) {
      const std::string name = std::string(op) + (ftz ? ".ftz" : "") + ".f32";
      list->add(name, name + " D0, S0, S1;", "f", "ww",
                [](In in, Out out) {
                  out[0] = word(static_cast<float>(static_cast<double>(f32(in[0])) /
                                                   static_cast<double>(f32(in[1]))));
                },
                {2, 0, 0});
    }
  }
  // Special values, for which the result is exact.
  struct Special {
    const char* name;
    Function f;
  };
  static const Special kSpecial[] = {
      {"ex2.approx.ftz.f32", [](double v) { return std::exp2(v); }},
      {"lg2.approx.ftz.f32", [](double v) { return std::log2(v); }},
      {"rcp.approx.ftz.f32", [](double v) { return 1 / v; }},
      {"sqrt.approx.ftz.f32", [](double v) { return std::sqrt(v); }},
      {"rsqrt.approx.ftz.f32", [](double v) { return 1 / std::sqrt(v); }},
      {"sin.approx.ftz.f32", [](double v) { return std::sin(v); }},
  };
  for (const Special& s : kSpecial) {
    const Function f = s.f;
    list->add_fixed(
        std::string(s.name) + " special", std::string(s.name) + " D0, S0;", "f", "f",
        [](uint64_t* in, Random& random) {
          constexpr uint32_t kValues[] = {0,          0x80000000, 0x7f800000, 0xff800000,
                                          0x7fc00000, 1,          0x80000001};
          in[0] = kValues[random.below(7)];
        },
        [=](In in, Out out) { out[0] = word(static_cast<float>(f(flushed(f32(in[0]))))); });
  }
  list->add_fixed(
      "rcp.approx.ftz.f64", "rcp.approx.ftz.f64 D0, S0;", "g", "g",
      [](uint64_t* in, Random& random) {
        in[0] = 0x3f00000000000000 + random.next() % 0x200000000000000;
      },
      [](In in, Out out) { out[0] = word(1 / f64(in[0])); }, {0, 0x1p-19, 0});
  list->add_fixed(
      "rsqrt.approx.ftz.f64", "rsqrt.approx.ftz.f64 D0, S0;", "g", "g",
      [](uint64_t* in, Random& random) {
        in[0] = 0x3f00000000000000 + random.next() % 0x200000000000000;
      },
      [](In in, Out out) { out[0] = word(1 / std::sqrt(f64(in[0]))); }, {0, 0x1p-18, 0});
}

}  // namespace

void add_float_cases(CaseList* list) {
  list->family("f32");
  add_arithmetic<float>(list, "f32", "f");
  add_min_max(list);
  list->family("f64");
  add_arithmetic<double>(list, "f64", "g");
  list->family("approximate");
  add_approximate(list);
}

}  // namespace softgpu::test
