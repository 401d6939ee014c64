#include <algorithm>
#include <bit>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

void add_logic(CaseList* list, int bits) {
  const std::string t = "b" + std::to_string(bits);
  const std::string l(1, bits == 16 ? 'h' : bits == 32 ? 'r' : 'd');
  const auto add2 = [&](const std::string& op, auto f) {
    list->add(op + "." + t, op + "." + t + " D0, S0, S1;", l, l + l,
              [=](In in, Out out) { out[0] = cut(static_cast<__int128>(f(in[0], in[1])), bits); });
  };
  add2("and", [](uint64_t a, uint64_t b) { return a & b; });
  add2("or", [](uint64_t a, uint64_t b) { return a | b; });
  add2("xor", [](uint64_t a, uint64_t b) { return a ^ b; });
  list->add("not." + t, "not." + t + " D0, S0;", l, l,
            [=](In in, Out out) { out[0] = cut(static_cast<__int128>(~in[0]), bits); });
  list->add("cnot." + t, "cnot." + t + " D0, S0;", l, l,
            [](In in, Out out) { out[0] = in[0] == 0; });
  list->add("mov." + t, "mov." + t + " D0, S0;", l, l, [](In in, Out out) { out[0] = in[0]; });
  list->add("selp." + t, "selp." + t + " D0, S0, S1, S2;", l, l + l + "p",
            [](In in, Out out) { out[0] = in[2] ? in[0] : in[1]; });
  list->add("shl." + t, "shl." + t + " D0, S0, S1;", l, l + "n", [=](In in, Out out) {
    out[0] =
        in[1] >= static_cast<uint64_t>(bits) ? 0 : cut(static_cast<__int128>(in[0] << in[1]), bits);
  });
  for (const std::string& kind : {std::string("u"), std::string("s"), std::string("b")}) {
    const std::string type = kind + std::to_string(bits);
    list->add("shr." + type, "shr." + type + " D0, S0, S1;", l, l + "n", [=](In in, Out out) {
      const int amount = static_cast<int>(std::min<uint64_t>(in[1], static_cast<uint64_t>(bits)));
      out[0] = cut(integer_value(in[0], bits, kind == "s") >> amount, bits);
    });
  }
  list->add("slct." + t + ".s32", "slct." + t + ".s32 D0, S0, S1, S2;", l, l + l + "r",
            [](In in, Out out) { out[0] = (in[2] & 0x80000000) == 0 ? in[0] : in[1]; });
  list->add("slct." + t + ".f32", "slct." + t + ".f32 D0, S0, S1, S2;", l, l + l + "f",
            [](In in, Out out) { out[0] = f32(in[2]) >= 0 ? in[0] : in[1]; });
  list->add("slct.ftz." + t + ".f32", "slct.ftz." + t + ".f32 D0, S0, S1, S2;", l, l + l + "f",
            [](In in, Out out) { out[0] = flushed(f32(in[2])) >= 0 ? in[0] : in[1]; });
}

void add_counts(CaseList* list, int bits) {
  // The PTX ISA uses eight bits of the operand; on hardware the 64-bit forms use all of them.
  const auto field_operand = [=](uint64_t n) {
    return static_cast<int>(bits == 32 ? n & 0xff : std::min<uint64_t>(n, 64));
  };
  const std::string t = "b" + std::to_string(bits);
  const std::string l(1, bits == 32 ? 'r' : 'd');
  list->add("popc." + t, "popc." + t + " D0, S0;", "r", l,
            [](In in, Out out) { out[0] = static_cast<uint64_t>(std::popcount(in[0])); });
  list->add("clz." + t, "clz." + t + " D0, S0;", "r", l, [=](In in, Out out) {
    out[0] = static_cast<uint64_t>(std::countl_zero(in[0]) - (64 - bits));
  });
  list->add("brev." + t, "brev." + t + " D0, S0;", l, l, [=](In in, Out out) {
    out[0] = 0;
    for (int k = 0; k < bits; ++k) out[0] |= (in[0] >> k & 1) << (bits - 1 - k);
  });
  for (const bool is_signed : {false, true}) {
    for (const bool shift : {false, true}) {
      const std::string name = std::string(shift ? "bfind.shiftamt." : "bfind.") +
                               (is_signed ? "s" : "u") + std::to_string(bits);
      list->add(name, name + " D0, S0;", "r", l, [=](In in, Out out) {
        const bool negative = is_signed && (in[0] >> (bits - 1) & 1) != 0;
        out[0] = 0xffffffff;
        for (int k = bits - 1; k >= 0; --k) {
          if ((in[0] >> k & 1) == (negative ? 1u : 0u)) continue;
          out[0] = static_cast<uint64_t>(shift ? bits - 1 - k : k);
          break;
        }
      });
    }
    const std::string type = (is_signed ? "s" : "u") + std::to_string(bits);
    list->add("bfe." + type, "bfe." + type + " D0, S0, S1, S2;", l, l + "nn", [=](In in, Out out) {
      const int pos = field_operand(in[1]), len = field_operand(in[2]);
      const int last = std::min(pos + len - 1, bits - 1);
      const uint64_t sign = !is_signed || len == 0 ? 0 : in[0] >> last & 1;
      out[0] = 0;
      for (int k = 0; k < bits; ++k) {
        const uint64_t bit = k < len && pos + k < bits ? in[0] >> (pos + k) & 1 : sign;
        out[0] |= bit << k;
      }
    });
  }
  list->add("bfi." + t, "bfi." + t + " D0, S0, S1, S2, S3;", l, l + l + "nn", [=](In in, Out out) {
    const int pos = field_operand(in[2]), len = field_operand(in[3]);
    out[0] = in[1];
    for (int k = 0; k < len && pos + k < bits; ++k) {
      out[0] = (out[0] & ~(uint64_t{1} << (pos + k))) | (in[0] >> k & 1) << (pos + k);
    }
  });
}

void add_permutations(CaseList* list) {
  const auto byte = [](In in, int k) { return (in[0] | in[1] << 32) >> (8 * (k & 7)) & 0xff; };
  list->add("prmt.b32", "prmt.b32 D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
    out[0] = 0;
    for (int k = 0; k < 4; ++k) {
      const int nibble = in[2] >> (4 * k) & 15;
      uint64_t b = byte(in, nibble);
      if (nibble & 8) b = b & 0x80 ? 0xff : 0;
      out[0] |= b << (8 * k);
    }
  });
  // The source of each of the four bytes, least significant first, for control values 0 to 3.
  struct Mode {
    const char* name;
    int from[4][4];
  };
  static constexpr Mode kModes[] = {
      {"f4e", {{0, 1, 2, 3}, {1, 2, 3, 4}, {2, 3, 4, 5}, {3, 4, 5, 6}}},
      {"b4e", {{0, 7, 6, 5}, {1, 0, 7, 6}, {2, 1, 0, 7}, {3, 2, 1, 0}}},
      {"rc8", {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}}},
      {"ecl", {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}}},
      {"ecr", {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}}},
      {"rc16", {{0, 1, 0, 1}, {2, 3, 2, 3}, {0, 1, 0, 1}, {2, 3, 2, 3}}},
  };
  for (const Mode& mode : kModes) {
    const std::string name = std::string("prmt.b32.") + mode.name;
    list->add(name, name + " D0, S0, S1, S2;", "r", "rrr", [=](In in, Out out) {
      out[0] = 0;
      for (int k = 0; k < 4; ++k) out[0] |= byte(in, mode.from[in[2] & 3][k]) << (8 * k);
    });
  }
  for (const int table : {0x00, 0x01, 0x1b, 0x80, 0x96, 0xca, 0xe8, 0xf0, 0xfe}) {
    list->add(
        "lop3.b32 " + std::to_string(table),
        "lop3.b32 D0, S0, S1, S2, " + std::to_string(table) + ";", "r", "rrr", [=](In in, Out out) {
          out[0] = 0;
          for (int k = 0; k < 32; ++k) {
            const int row =
                static_cast<int>((in[0] >> k & 1) << 2 | (in[1] >> k & 1) << 1 | (in[2] >> k & 1));
            out[0] |= static_cast<uint64_t>(table >> row & 1) << k;
          }
        });
  }
  for (const bool left : {false, true}) {
    for (const bool clamp : {false, true}) {
      const std::string name =
          std::string("shf.") + (left ? "l." : "r.") + (clamp ? "clamp" : "wrap") + ".b32";
      list->add(name, name + " D0, S0, S1, S2;", "r", "rrn", [=](In in, Out out) {
        const uint64_t both = in[1] << 32 | in[0];
        const int n = static_cast<int>(clamp ? std::min<uint64_t>(in[2], 32) : in[2] & 31);
        out[0] = left ? (n == 0 ? in[1] : both >> (32 - n) & 0xffffffff) : both >> n & 0xffffffff;
      });
    }
  }
  for (const bool clamp : {false, true}) {
    const std::string mode = clamp ? "clamp" : "wrap";
    list->add("bmsk." + mode, "bmsk." + mode + ".b32 D0, S0, S1;", "r", "nn", [=](In in, Out out) {
      const uint64_t start = clamp ? std::min<uint64_t>(in[0], 32) : in[0] & 31;
      const uint64_t width = clamp ? std::min<uint64_t>(in[1], 32) : in[1] & 31;
      out[0] = 0;
      for (uint64_t k = start; k < start + width && k < 32; ++k) out[0] |= uint64_t{1} << k;
    });
    for (const bool is_signed : {false, true}) {
      const std::string name = "szext." + mode + (is_signed ? ".s32" : ".u32");
      list->add(name, name + " D0, S0, S1;", "r", "rn", [=](In in, Out out) {
        const int width = static_cast<int>(clamp ? std::min<uint64_t>(in[1], 32) : in[1] & 31);
        out[0] = width == 0 ? 0 : cut(integer_value(in[0], width, is_signed), 32);
      });
    }
  }
  list->add_fixed(
      "fns.b32", "fns.b32 D0, S0, S1, S2;", "r", "rrr",
      [](uint64_t* in, Random& random) {
        in[1] = random.below(32);
        in[2] = static_cast<uint32_t>(static_cast<int>(random.below(13)) - 6);
      },
      [](In in, Out out) {
        const auto n = static_cast<int32_t>(in[2]);
        out[0] = 0xffffffff;
        if (n == 0) {
          if (in[0] >> in[1] & 1) out[0] = in[1];
          return;
        }
        int left = n < 0 ? -n : n;
        for (int k = static_cast<int>(in[1]); k >= 0 && k < 32; k += n < 0 ? -1 : 1) {
          if ((in[0] >> k & 1) != 0 && --left == 0) {
            out[0] = static_cast<uint64_t>(k);
            return;
          }
        }
      });
}

void add_predicates(CaseList* list) {
  list->add("and.pred", "and.pred D0, S0, S1;", "p", "pp",
            [](In in, Out out) { out[0] = in[0] & in[1]; });
  list->add("or.pred", "or.pred D0, S0, S1;", "p", "pp",
            [](In in, Out out) { out[0] = in[0] | in[1]; });
  list->add("xor.pred", "xor.pred D0, S0, S1;", "p", "pp",
            [](In in, Out out) { out[0] = in[0] ^ in[1]; });
  list->add("not.pred", "not.pred D0, S0;", "p", "p", [](In in, Out out) { out[0] = in[0] ^ 1; });
  list->add("mov.pred", "mov.pred D0, S0;", "p", "p", [](In in, Out out) { out[0] = in[0]; });
  list->add("guards", "mov.u32 D0, 1;\n  @S0 add.u32 D0, D0, S1;\n  @!S0 mul.lo.u32 D0, S1, S1;",
            "r", "pr", [](In in, Out out) {
              out[0] = in[0] ? (in[1] + 1) & 0xffffffff : in[1] * in[1] & 0xffffffff;
            });
}

void add_vectors(CaseList* list) {
  list->add("mov.b32 pack", "mov.b32 D0, {S0, S1};", "r", "hh",
            [](In in, Out out) { out[0] = in[0] | in[1] << 16; });
  list->add("mov.b64 pack", "mov.b64 D0, {S0, S1};", "d", "rr",
            [](In in, Out out) { out[0] = in[0] | in[1] << 32; });
  list->add("mov.b64 pack 4", "mov.b64 D0, {S0, S1, S2, S3};", "d", "hhhh",
            [](In in, Out out) { out[0] = in[0] | in[1] << 16 | in[2] << 32 | in[3] << 48; });
  list->add("mov.b32 unpack", "mov.b32 {D0, D1}, S0;", "hh", "r", [](In in, Out out) {
    out[0] = in[0] & 0xffff;
    out[1] = in[0] >> 16;
  });
  list->add("mov.b64 unpack", "mov.b64 {D0, D1}, S0;", "rr", "d", [](In in, Out out) {
    out[0] = in[0] & 0xffffffff;
    out[1] = in[0] >> 32;
  });
  list->add("mov.b64 unpack 4", "mov.b64 {D0, D1, D2, D3}, S0;", "hhhh", "d", [](In in, Out out) {
    for (int k = 0; k < 4; ++k) out[k] = in[0] >> (16 * k) & 0xffff;
  });
  list->add("mov.b64 sink", "mov.b64 {_, D0}, S0;", "r", "d",
            [](In in, Out out) { out[0] = in[0] >> 32; });
}

}  // namespace

void add_bit_cases(CaseList* list) {
  list->family("bits");
  for (const int bits : {16, 32, 64}) add_logic(list, bits);
  for (const int bits : {32, 64}) add_counts(list, bits);
  add_permutations(list);
  add_predicates(list);
  add_vectors(list);
}

}  // namespace softgpu::test
