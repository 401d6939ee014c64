#include <algorithm>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

using Wide = __int128;

__int128 clamp(__int128 v, int bits, bool is_signed) {
  const Wide low = is_signed ? -(Wide{1} << (bits - 1)) : 0;
  const Wide high = (Wide{1} << (bits - (is_signed ? 1 : 0))) - 1;
  return std::min(std::max(v, low), high);
}

void add_typed(CaseList* list, const IntegerType& type) {
  const std::string t = type.name;
  const std::string l(1, type.letter);
  const int bits = type.bits;
  const bool sign = type.is_signed;
  const auto value = [=](uint64_t w) { return integer_value(w, bits, sign); };
  const auto binary = [&](const std::string& op, auto f) {
    list->add(op + "." + t, op + "." + t + " D0, S0, S1;", l, l + l,
              [=](In in, Out out) { out[0] = cut(f(value(in[0]), value(in[1])), bits); });
  };
  binary("add", [](Wide a, Wide b) { return a + b; });
  binary("sub", [](Wide a, Wide b) { return a - b; });
  binary("min", [](Wide a, Wide b) { return a < b ? a : b; });
  binary("max", [](Wide a, Wide b) { return a < b ? b : a; });
  // Products of 64-bit integers are computed unsigned: they wrap around, and the low half is
  // correct.
  const auto product = [=](Wide a, Wide b) {
    return static_cast<Wide>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
  };
  binary("mul.lo", product);
  binary("mul.hi", [=](Wide a, Wide b) {
    const Wide p = product(a, b);
    return sign ? p >> bits : static_cast<Wide>(static_cast<unsigned __int128>(p) >> bits);
  });
  const std::string divisor(1, bits == 16 ? 'y' : bits == 32 ? 'z' : 'x');
  for (const char* op : {"div", "rem"}) {
    const bool is_div = std::string(op) == "div";
    list->add(std::string(op) + "." + t, std::string(op) + "." + t + " D0, S0, S1;", l, l + divisor,
              [=](In in, Out out) {
                const Wide a = value(in[0]), b = value(in[1]);
                out[0] = cut(is_div ? a / b : a % b, bits);
              });
  }
  const auto ternary = [&](const std::string& op, auto f) {
    list->add(op + "." + t, op + "." + t + " D0, S0, S1, S2;", l, l + l + l, [=](In in, Out out) {
      out[0] = cut(f(value(in[0]), value(in[1]), value(in[2])), bits);
    });
  };
  ternary("mad.lo", [=](Wide a, Wide b, Wide c) { return product(a, b) + c; });
  ternary("mad.hi", [=](Wide a, Wide b, Wide c) {
    const Wide p = product(a, b);
    return (sign ? p >> bits : static_cast<Wide>(static_cast<unsigned __int128>(p) >> bits)) + c;
  });
  ternary("sad", [](Wide a, Wide b, Wide c) { return c + (a < b ? b - a : a - b); });
  if (sign) {
    for (const char* op : {"abs", "neg"}) {
      const bool is_abs = std::string(op) == "abs";
      list->add(std::string(op) + "." + t, std::string(op) + "." + t + " D0, S0;", l, l,
                [=](In in, Out out) {
                  const Wide a = value(in[0]);
                  out[0] = cut(is_abs ? (a < 0 ? -a : a) : -a, bits);
                });
    }
  }
  if (bits < 64) {
    const std::string w(1, type.wide_letter);
    list->add("mul.wide." + t, "mul.wide." + t + " D0, S0, S1;", w, l + l,
              [=](In in, Out out) { out[0] = cut(value(in[0]) * value(in[1]), 2 * bits); });
    list->add("mad.wide." + t, "mad.wide." + t + " D0, S0, S1, S2;", w, l + l + w,
              [=](In in, Out out) {
                out[0] = cut(value(in[0]) * value(in[1]) + static_cast<Wide>(in[2]), 2 * bits);
              });
  }
}

void add_carry_chains(CaseList* list) {
  for (const int bits : {32, 64}) {
    const std::string t = bits == 32 ? "u32" : "u64";
    const std::string l(1, bits == 32 ? 'r' : 'd');
    using U = unsigned __int128;
    list->add("add.cc/addc.cc/addc." + t,
              "add.cc." + t + " D0, S0, S1;\n  addc.cc." + t + " D1, S2, S3;\n  addc." + t +
                  " D2, S0, S3;",
              l + l + l, l + l + l + l, [=](In in, Out out) {
                const U first = static_cast<U>(in[0]) + in[1];
                const U second = static_cast<U>(in[2]) + in[3] + (first >> bits);
                out[0] = cut(static_cast<Wide>(first), bits);
                out[1] = cut(static_cast<Wide>(second), bits);
                out[2] =
                    cut(static_cast<Wide>(static_cast<U>(in[0]) + in[3] + (second >> bits)), bits);
              });
    list->add("sub.cc/subc.cc/subc." + t,
              "sub.cc." + t + " D0, S0, S1;\n  subc.cc." + t + " D1, S2, S3;\n  subc." + t +
                  " D2, S0, S3;",
              l + l + l, l + l + l + l, [=](In in, Out out) {
                const Wide first = static_cast<Wide>(in[0]) - static_cast<Wide>(in[1]);
                const Wide second =
                    static_cast<Wide>(in[2]) - static_cast<Wide>(in[3]) - (first < 0 ? 1 : 0);
                out[0] = cut(first, bits);
                out[1] = cut(second, bits);
                out[2] =
                    cut(static_cast<Wide>(in[0]) - static_cast<Wide>(in[3]) - (second < 0 ? 1 : 0),
                        bits);
              });
    // The product of two words plus two words, as in multi-word arithmetic.
    list->add("mad.lo.cc/madc.hi." + t,
              "mad.lo.cc." + t + " D0, S0, S1, S2;\n  madc.hi." + t + " D1, S0, S1, S3;", l + l,
              l + l + l + l, [=](In in, Out out) {
                const U p = static_cast<U>(in[0]) * in[1];
                const U low = static_cast<U>(cut(static_cast<Wide>(p), bits)) + in[2];
                out[0] = cut(static_cast<Wide>(low), bits);
                out[1] = cut(static_cast<Wide>((p >> bits) + in[3] + (low >> bits)), bits);
              });
    list->add("mad.hi.cc/madc.lo.cc/addc." + t,
              "mad.hi.cc." + t + " D0, S0, S1, S2;\n  madc.lo.cc." + t +
                  " D1, S0, S1, S3;\n  addc." + t + " D2, S2, S3;",
              l + l + l, l + l + l + l, [=](In in, Out out) {
                const U p = static_cast<U>(in[0]) * in[1];
                const U first = (p >> bits) + in[2];
                const U second =
                    static_cast<U>(cut(static_cast<Wide>(p), bits)) + in[3] + (first >> bits);
                out[0] = cut(static_cast<Wide>(first), bits);
                out[1] = cut(static_cast<Wide>(second), bits);
                out[2] =
                    cut(static_cast<Wide>(static_cast<U>(in[2]) + in[3] + (second >> bits)), bits);
              });
  }
}

void add_24_bit(CaseList* list) {
  for (const bool is_signed : {false, true}) {
    const std::string t = is_signed ? "s32" : "u32";
    const auto low24 = [=](uint64_t w) { return integer_value(w, 24, is_signed); };
    for (const bool high : {false, true}) {
      const std::string part = high ? "hi." : "lo.";
      const int shift = high ? 16 : 0;
      list->add("mul24." + part + t, "mul24." + part + t + " D0, S0, S1;", "r", "rr",
                [=](In in, Out out) { out[0] = cut((low24(in[0]) * low24(in[1])) >> shift, 32); });
      list->add("mad24." + part + t, "mad24." + part + t + " D0, S0, S1, S2;", "r", "rrr",
                [=](In in, Out out) {
                  out[0] =
                      cut(((low24(in[0]) * low24(in[1])) >> shift) + static_cast<Wide>(in[2]), 32);
                });
    }
  }
}

void add_dot_products(CaseList* list) {
  for (const bool a_signed : {false, true}) {
    for (const bool b_signed : {false, true}) {
      const std::string types =
          std::string(a_signed ? "s32" : "u32") + (b_signed ? ".s32" : ".u32");
      list->add(
          "dp4a." + types, "dp4a." + types + " D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
            Wide sum = static_cast<Wide>(in[2]);
            for (int k = 0; k < 32; k += 8) {
              sum +=
                  integer_value(in[0] >> k, 8, a_signed) * integer_value(in[1] >> k, 8, b_signed);
            }
            out[0] = cut(sum, 32);
          });
      for (const bool high : {false, true}) {
        const std::string name = std::string("dp2a.") + (high ? "hi." : "lo.") + types;
        list->add(name, name + " D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
          Wide sum = static_cast<Wide>(in[2]);
          for (int k = 0; k < 2; ++k) {
            sum += integer_value(in[0] >> (16 * k), 16, a_signed) *
                   integer_value(in[1] >> (8 * k + (high ? 16 : 0)), 8, b_signed);
          }
          out[0] = cut(sum, 32);
        });
      }
    }
  }
}

void add_packed(CaseList* list) {
  struct Form {
    std::string name;
    bool is_signed;
    int op;  // 0 add, 1 min, 2 max
    bool relu;
  };
  for (const Form& f :
       {Form{"add.u16x2", false, 0, false}, Form{"add.s16x2", true, 0, false},
        Form{"min.u16x2", false, 1, false}, Form{"min.s16x2", true, 1, false},
        Form{"max.u16x2", false, 2, false}, Form{"max.s16x2", true, 2, false},
        Form{"min.relu.s16x2", true, 1, true}, Form{"max.relu.s16x2", true, 2, true}}) {
    list->add(f.name, f.name + " D0, S0, S1;", "r", "rr", [=](In in, Out out) {
      out[0] = 0;
      for (int k = 0; k < 32; k += 16) {
        const Wide a = integer_value(in[0] >> k, 16, f.is_signed),
                   b = integer_value(in[1] >> k, 16, f.is_signed);
        Wide r = f.op == 0 ? a + b : f.op == 1 ? std::min(a, b) : std::max(a, b);
        if (f.relu) r = std::max<Wide>(r, 0);
        out[0] |= cut(r, 16) << k;
      }
    });
  }
}

}  // namespace

void add_integer_cases(CaseList* list) {
  list->family("integer");
  for (const IntegerType& type : kIntegerTypes) add_typed(list, type);
  const auto s32 = [](uint64_t w) { return integer_value(w, 32, true); };
  list->add("add.sat.s32", "add.sat.s32 D0, S0, S1;", "r", "rr",
            [=](In in, Out out) { out[0] = cut(clamp(s32(in[0]) + s32(in[1]), 32, true), 32); });
  list->add("sub.sat.s32", "sub.sat.s32 D0, S0, S1;", "r", "rr",
            [=](In in, Out out) { out[0] = cut(clamp(s32(in[0]) - s32(in[1]), 32, true), 32); });
  list->add("mad.hi.sat.s32", "mad.hi.sat.s32 D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
    out[0] = cut(clamp(((s32(in[0]) * s32(in[1])) >> 32) + s32(in[2]), 32, true), 32);
  });
  for (const bool is_max : {false, true}) {
    const std::string op = is_max ? "max.relu.s32" : "min.relu.s32";
    list->add(op, op + " D0, S0, S1;", "r", "rr", [=](In in, Out out) {
      const Wide a = s32(in[0]), b = s32(in[1]);
      out[0] = cut(std::max<Wide>(is_max ? std::max(a, b) : std::min(a, b), 0), 32);
    });
  }
  for (const int bits : {8, 16}) {
    for (const bool sum : {false, true}) {
      const std::string name =
          std::string(bits == 8 ? "vabsdiff4" : "vabsdiff2") + ".u32.u32.u32" + (sum ? ".add" : "");
      list->add(name, name + " D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
        Wide total = sum ? static_cast<Wide>(in[2]) : 0;
        for (int k = 0; k < 32; k += bits) {
          const Wide a = integer_value(in[0] >> k, bits, false),
                     b = integer_value(in[1] >> k, bits, false);
          total += (a < b ? b - a : a - b) << (sum ? 0 : k);
        }
        out[0] = cut(total, 32);
      });
    }
  }
  add_24_bit(list);
  add_dot_products(list);
  add_packed(list);
  list->family("carry");
  add_carry_chains(list);
}

}  // namespace softgpu::test
