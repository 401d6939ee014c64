#include <cmath>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

template <class T>
bool holds(const std::string& op, T a, T b, bool unordered) {
  if (op == "num") return !unordered;
  if (op == "nan") return unordered;
  const bool or_nan = op.size() == 3;  // equ, neu, ltu, leu, gtu, geu
  if (unordered) return or_nan;
  const std::string base = op.substr(0, 2);
  if (base == "eq") return a == b;
  if (base == "ne") return a != b;
  if (base == "lt" || base == "lo") return a < b;
  if (base == "le" || base == "ls") return a <= b;
  if (base == "gt" || base == "hi") return a > b;
  return a >= b;
}

using Test = std::function<bool(uint64_t, uint64_t)>;

// Adds all forms of a comparison: plain, combined, with two destinations, and set.
void add_forms(CaseList* list, const std::string& op, const std::string& type,
               const std::string& letter, const Test& test, bool all_forms) {
  const auto pair_of = [&](const std::string& extra) { return letter + letter + extra; };
  list->add("setp." + op + "." + type, "setp." + op + "." + type + " D0, S0, S1;", "p", pair_of(""),
            [=](In in, Out out) { out[0] = test(in[0], in[1]); });
  if (!all_forms) return;
  list->add("setp." + op + "." + type + " p|q", "setp." + op + "." + type + " D0|D1, S0, S1;", "pp",
            pair_of(""), [=](In in, Out out) {
              out[0] = test(in[0], in[1]);
              out[1] = !out[0];
            });
  list->add("setp." + op + ".and." + type, "setp." + op + ".and." + type + " D0|D1, S0, S1, S2;",
            "pp", pair_of("p"), [=](In in, Out out) {
              const bool r = test(in[0], in[1]);
              out[0] = r && in[2];
              out[1] = !r && in[2];
            });
  list->add("setp." + op + ".or." + type + " !c",
            "setp." + op + ".or." + type + " D0, S0, S1, !S2;", "p", pair_of("p"),
            [=](In in, Out out) { out[0] = test(in[0], in[1]) || !in[2]; });
  list->add("setp." + op + ".xor." + type, "setp." + op + ".xor." + type + " D0, S0, S1, S2;", "p",
            pair_of("p"), [=](In in, Out out) { out[0] = test(in[0], in[1]) != (in[2] != 0); });
  list->add("set." + op + ".u32." + type, "set." + op + ".u32." + type + " D0, S0, S1;", "r",
            pair_of(""), [=](In in, Out out) { out[0] = test(in[0], in[1]) ? 0xffffffff : 0; });
  list->add("set." + op + ".and.s32." + type,
            "set." + op + ".and.s32." + type + " D0, S0, S1, !S2;", "r", pair_of("p"),
            [=](In in, Out out) { out[0] = test(in[0], in[1]) && !in[2] ? 0xffffffff : 0; });
}

constexpr const char* kFloatOps[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                     "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};

}  // namespace

void add_compare_cases(CaseList* list) {
  list->family("compare");
  for (const IntegerType& t : kIntegerTypes) {
    for (const std::string op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
      add_forms(
          list, op, t.name, std::string(1, t.letter),
          [=](uint64_t a, uint64_t b) {
            return holds(op, integer_value(a, t.bits, t.is_signed),
                         integer_value(b, t.bits, t.is_signed), false);
          },
          op == "lt" || op == "ge");
    }
    if (t.is_signed) continue;
    for (const std::string op : {"lo", "ls", "hi", "hs"}) {
      add_forms(
          list, op, t.name, std::string(1, t.letter),
          [=](uint64_t a, uint64_t b) { return holds(op, a, b, false); }, false);
    }
    const std::string bits = "b" + std::to_string(t.bits);
    for (const std::string op : {"eq", "ne"}) {
      add_forms(
          list, op, bits, std::string(1, t.letter),
          [=](uint64_t a, uint64_t b) { return holds(op, a, b, false); }, false);
    }
  }
  for (const std::string op : kFloatOps) {
    const bool all = op == "lt" || op == "geu" || op == "nan";
    add_forms(
        list, op, "f32", "f",
        [=](uint64_t a, uint64_t b) {
          return holds(op, f32(a), f32(b), std::isnan(f32(a)) || std::isnan(f32(b)));
        },
        all);
    add_forms(
        list, op, "ftz.f32", "f",
        [=](uint64_t a, uint64_t b) {
          return holds(op, flushed(f32(a)), flushed(f32(b)),
                       std::isnan(f32(a)) || std::isnan(f32(b)));
        },
        false);
    add_forms(
        list, op, "f64", "g",
        [=](uint64_t a, uint64_t b) {
          return holds(op, f64(a), f64(b), std::isnan(f64(a)) || std::isnan(f64(b)));
        },
        all);
    const auto half = [=](uint64_t a, uint64_t b) {
      const float x = half_value(static_cast<uint16_t>(a)),
                  y = half_value(static_cast<uint16_t>(b));
      return holds(op, x, y, std::isnan(x) || std::isnan(y));
    };
    const auto bf16 = [=](uint64_t a, uint64_t b) {
      const float x = bf16_value(static_cast<uint16_t>(a)),
                  y = bf16_value(static_cast<uint16_t>(b));
      return holds(op, x, y, std::isnan(x) || std::isnan(y));
    };
    add_forms(list, op, "f16", "e", half, false);
    add_forms(list, op, "bf16", "b", bf16, false);
    const std::string name = "setp." + op + ".f16x2";
    list->add(name, name + " D0|D1, S0, S1;", "pp", "EE", [=](In in, Out out) {
      out[0] = half(in[0] & 0xffff, in[1] & 0xffff);
      out[1] = half(in[0] >> 16, in[1] >> 16);
    });
    list->add("set." + op + ".f16.f16", "set." + op + ".f16.f16 D0, S0, S1;", "e", "ee",
              [=](In in, Out out) { out[0] = half(in[0], in[1]) ? 0x3c00 : 0; });
    list->add("set." + op + ".f16x2.f16x2", "set." + op + ".f16x2.f16x2 D0, S0, S1;", "E", "EE",
              [=](In in, Out out) {
                out[0] = (half(in[0] & 0xffff, in[1] & 0xffff) ? 0x3c00u : 0) |
                         (half(in[0] >> 16, in[1] >> 16) ? 0x3c000000u : 0);
              });
    list->add("set." + op + ".bf16x2.bf16x2", "set." + op + ".bf16x2.bf16x2 D0, S0, S1;", "B", "BB",
              [=](In in, Out out) {
                out[0] = (bf16(in[0] & 0xffff, in[1] & 0xffff) ? 0x3f80u : 0) |
                         (bf16(in[0] >> 16, in[1] >> 16) ? 0x3f800000u : 0);
              });
  }
  list->add("set.lt.f32.f32", "set.lt.f32.f32 D0, S0, S1;", "f", "ff",
            [](In in, Out out) { out[0] = f32(in[0]) < f32(in[1]) ? 0x3f800000 : 0; });
  list->add("set.lt.f32.f64", "set.lt.f32.f64 D0, S0, S1;", "f", "gg",
            [](In in, Out out) { out[0] = f64(in[0]) < f64(in[1]) ? 0x3f800000 : 0; });
}

}  // namespace softgpu::test
