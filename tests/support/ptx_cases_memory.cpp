#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

struct Access {
  const char* type;
  int bits;
  bool is_signed;
  char letter;  // the smallest register that holds it
};
constexpr Access kAccesses[] = {
    {"b8", 8, false, 'h'},   {"u8", 8, false, 'h'},   {"s8", 8, true, 'h'},
    {"b16", 16, false, 'h'}, {"u16", 16, false, 'h'}, {"s16", 16, true, 'h'},
    {"b32", 32, false, 'r'}, {"u32", 32, false, 'r'}, {"s32", 32, true, 'r'},
    {"f32", 32, false, 'r'}, {"b64", 64, false, 'd'}, {"s64", 64, true, 'd'},
    {"f64", 64, false, 'd'}};

int bits_of(char letter) { return letter == 'h' ? 16 : letter == 'r' ? 32 : 64; }

// Each thread stores to its own place and loads it back. Where types allow, the register is wider
// than the access.
void add_spaces(CaseList* list) {
  struct Space {
    const char* name;
    const char* declaration;  // 32 bytes per thread
    const char* address;      // computes the address in %a
  };
  static constexpr Space kSpaces[] = {
      {".local", ".local .align 16 .b8 area[32];", "mov.u64 %a, area;"},
      {".shared", ".shared .align 16 .b8 area[8192];",
       "mov.u64 %a, area;\n  mul.wide.u32 %w, %t, 32;\n  add.u64 %a, %a, %w;"},
      {"", ".shared .align 16 .b8 area[8192];",
       "mov.u64 %a, area;\n  cvta.shared.u64 %a, %a;\n  mul.wide.u32 %w, %t, 32;\n  add.u64 %a, "
       "%a, %w;"},
  };
  for (const Space& space : kSpaces) {
    const std::string head =
        std::string(space.declaration) + "\n  .reg .b64 %a;\n  " + space.address + "\n  ";
    for (const Access& access : kAccesses) {
      for (const char letter : {'h', 'r', 'd'}) {
        if (bits_of(letter) < access.bits) continue;
        const bool is_float = access.type[0] == 'f';
        if (is_float && bits_of(letter) != access.bits) continue;
        const std::string s = space.name;
        const std::string l(1, letter);
        list->add("st" + s + "." + access.type + " ld" + s + "." + access.type + " " + l,
                  head + "st" + s + "." + access.type + " [%a+8], S0;\n  ld" + s + "." +
                      access.type + " D0, [%a+8];",
                  l, l, [=](In in, Out out) {
                    out[0] =
                        cut(integer_value(in[0], access.bits, access.is_signed), bits_of(letter));
                  });
      }
    }
    for (const int count : {2, 4}) {
      for (const char* type : {"u8", "u16", "b32", "u64", "f32"}) {
        const int bits = type[1] == '8' ? 8 : type[1] == '1' ? 16 : type[1] == '3' ? 32 : 64;
        if (bits * count > 128) continue;
        const std::string l(1, bits <= 16 ? 'h' : bits == 32 ? 'r' : 'd');
        std::string d, s, from, to;
        for (int k = 0; k < count; ++k) {
          d += l, s += l;
          from += (k ? ", S" : "S") + std::to_string(k);
          to += (k ? ", D" : "D") + std::to_string(k);
        }
        const std::string form =
            std::string(space.name) + ".v" + std::to_string(count) + "." + type;
        list->add("st/ld" + form,
                  head + "st" + form + " [%a+16], {" + from + "};\n  ld" + form + " {" + to +
                      "}, [%a+16];",
                  d, s, [=](In in, Out out) {
                    for (int k = 0; k < count; ++k)
                      out[k] = cut(static_cast<__int128>(in[k]), bits);
                  });
      }
    }
  }
}

// Strong accesses and cache operators; the value must arrive unchanged.
void add_qualified(CaseList* list) {
  for (const std::string form :
       {"volatile.global.u32", "relaxed.gpu.global.u32", "acquire.gpu.global.u32",
        "acquire.sys.u32", "relaxed.cta.global.u32", "global.ca.u32", "global.cg.u32",
        "global.cs.u32", "global.cv.u32", "global.nc.u32", "weak.global.u32",
        "global.L1::evict_last.u32", "global.L2::128B.u32"}) {
    list->add("ld." + form, "ld." + form + " D0, [%in];", "r", "r",
              [](In in, Out out) { out[0] = in[0]; });
  }
  for (const std::string form :
       {"volatile.global.u32", "relaxed.gpu.global.u32", "release.gpu.global.u32",
        "release.sys.u32", "global.wb.u32", "global.cg.u32", "global.cs.u32", "global.wt.u32",
        "weak.global.u32"}) {
    list->add("st." + form, "st." + form + " [%out], S0;\n  ld.global.u32 D0, [%out];", "r", "r",
              [](In in, Out out) { out[0] = in[0]; });
  }
  list->add("ld.relaxed.gpu.v2.u32", "ld.relaxed.gpu.global.v2.u32 {D0, D1}, [%in];", "rr", "d",
            [](In in, Out out) {
              out[0] = in[0] & 0xffffffff;
              out[1] = in[0] >> 32;
            });
  list->add("ld.global.nc.v2.u64", "ld.global.nc.v2.u64 {D0, D1}, [%in];", "dd", "dd",
            [](In in, Out out) { out[0] = in[0], out[1] = in[1]; });
  list->add("ld.global.v4.u16", "ld.global.v4.u16 {D0, D1, D2, D3}, [%in];", "hhhh", "d",
            [](In in, Out out) {
              for (int k = 0; k < 4; ++k) out[k] = in[0] >> (16 * k) & 0xffff;
            });
  list->add("prefetch", "prefetch.global.L2 [%in];\n  prefetch.global.L1 [%in];\n  mov.b32 D0, S0;",
            "r", "r", [](In in, Out out) { out[0] = in[0]; });
  list->add("fence",
            "fence.acq_rel.gpu;\n  fence.sc.sys;\n  membar.cta;\n  membar.gl;\n  membar.sys;\n  "
            "mov.b32 D0, S0;",
            "r", "r", [](In in, Out out) { out[0] = in[0]; });
  list->add("guarded load", "mov.u32 D0, 7;\n  @S1 ld.global.u32 D0, [%in];", "r", "rp",
            [](In in, Out out) { out[0] = in[1] ? in[0] : 7; });
  list->add("isspacep",
            ".shared .b32 sv;\n  .local .b32 lv;\n  .reg .b64 %a, %c;\n  mov.u64 %a, sv;\n  "
            "cvta.shared.u64 %a, %a;\n"
            "  mov.u64 %c, lv;\n  cvta.local.u64 %c, %c;\n  isspacep.shared D0, %a;\n  "
            "isspacep.local D1, %c;\n"
            "  isspacep.global D2, %in;\n  isspacep.global D3, %a;\n  isspacep.shared D4, %c;",
            "ppppp", "r", [](In, Out out) { out[0] = out[1] = out[2] = 1, out[3] = out[4] = 0; });
}

// Atomics on each thread's own 16 bytes. The cases check the value in memory and the returned
// value.
void add_atomics(CaseList* list) {
  const auto add = [&](const std::string& op, const std::string& type, char letter, bool ternary,
                       const std::function<uint64_t(uint64_t, uint64_t, uint64_t)>& f) {
    const std::string l(1, letter);
    const int bits = letter == 'e' || letter == 'b' || letter == 'h' ? 16
                     : letter == 'd' || letter == 'g'                ? 64
                                                                     : 32;
    const std::string b = "b" + std::to_string(bits);
    const std::string operands = ternary ? "S1, S2" : "S1";
    const std::string sources = l + l + l;
    const auto reference = [=](In in, Out out) {
      out[0] = in[0];
      out[1] = f(in[0], in[1], in[2]);
    };
    list->add("atom.global." + op + "." + type,
              "st.global." + b + " [%out], S0;\n  atom.global." + op + "." + type +
                  " D0, [%out], " + operands + ";\n  ld.global." + b + " D1, [%out];",
              l + l, sources, reference);
    list->add("atom.shared." + op + "." + type,
              ".shared .align 16 .b8 area[4096];\n  .reg .b32 %a;\n  mov.u32 %a, area;\n  shl.b32 "
              "%z, %t, 4;\n  add.u32 %a, %a, %z;\n"
              "  st.shared." +
                  b + " [%a], S0;\n  atom.shared." + op + "." + type + " D0, [%a], " + operands +
                  ";\n  ld.shared." + b + " D1, [%a];",
              l + l, sources, reference);
    list->add("atom.acq_rel.gpu." + op + "." + type,
              "st.global." + b + " [%out], S0;\n  atom.acq_rel.gpu.global." + op + "." + type +
                  " D0, [%out], " + operands + ";\n  ld.global." + b + " D1, [%out];",
              l + l, sources, reference);
    if (op == "exch" || op == "cas") return;
    list->add("red.relaxed.gpu.global." + op + "." + type,
              "st.global." + b + " [%out], S0;\n  red.relaxed.gpu.global." + op + "." + type +
                  " [%out], S1;\n  mov." + b + " D0, S0;\n  ld.global." + b + " D1, [%out];",
              l + l, sources, reference);
  };
  for (const int bits : {32, 64}) {
    const char letter = bits == 32 ? 'r' : 'd';
    const std::string n = std::to_string(bits);
    const auto cut_to = [=](uint64_t v) { return cut(static_cast<__int128>(v), bits); };
    add("and", "b" + n, letter, false, [](uint64_t o, uint64_t b, uint64_t) { return o & b; });
    add("or", "b" + n, letter, false, [](uint64_t o, uint64_t b, uint64_t) { return o | b; });
    add("xor", "b" + n, letter, false, [](uint64_t o, uint64_t b, uint64_t) { return o ^ b; });
    add("exch", "b" + n, letter, false, [](uint64_t, uint64_t b, uint64_t) { return b; });
    add("cas", "b" + n, letter, true,
        [](uint64_t o, uint64_t b, uint64_t c) { return o == b ? c : o; });
    add("add", "u" + n, letter, false,
        [=](uint64_t o, uint64_t b, uint64_t) { return cut_to(o + b); });
    for (const bool is_signed : {false, true}) {
      const std::string type = (is_signed ? "s" : "u") + n;
      const auto value = [=](uint64_t w) { return integer_value(w, bits, is_signed); };
      add("min", type, letter, false,
          [=](uint64_t o, uint64_t b, uint64_t) { return value(o) < value(b) ? o : b; });
      add("max", type, letter, false,
          [=](uint64_t o, uint64_t b, uint64_t) { return value(o) > value(b) ? o : b; });
    }
  }
  add("add", "s32", 'r', false,
      [](uint64_t o, uint64_t b, uint64_t) { return (o + b) & 0xffffffff; });
  add("inc", "u32", 'r', false,
      [](uint64_t o, uint64_t b, uint64_t) { return o >= b ? 0 : o + 1; });
  add("dec", "u32", 'r', false,
      [](uint64_t o, uint64_t b, uint64_t) { return o == 0 || o > b ? b : o - 1; });
  add("cas", "b16", 'h', true, [](uint64_t o, uint64_t b, uint64_t c) { return o == b ? c : o; });
  add("add", "f32", 'w', false,
      [](uint64_t o, uint64_t b, uint64_t) { return word(f32(o) + f32(b)); });
  add("add", "f64", 'g', false,
      [](uint64_t o, uint64_t b, uint64_t) { return word(f64(o) + f64(b)); });
  const auto pairs = [](const std::function<uint16_t(uint16_t, uint16_t)>& f) {
    return [f](uint64_t o, uint64_t b, uint64_t) {
      return static_cast<uint64_t>(f(static_cast<uint16_t>(o), static_cast<uint16_t>(b))) |
             static_cast<uint64_t>(
                 f(static_cast<uint16_t>(o >> 16), static_cast<uint16_t>(b >> 16)))
                 << 16;
    };
  };
  const auto half_sum = [](uint16_t a, uint16_t b) {
    return nearest_half(static_cast<__float128>(half_value(a)) + half_value(b));
  };
  const auto bf16_sum = [](uint16_t a, uint16_t b) {
    return nearest_bf16(static_cast<__float128>(bf16_value(a)) + bf16_value(b));
  };
  add("add.noftz", "f16", 'e', false, [=](uint64_t o, uint64_t b, uint64_t) {
    return half_sum(static_cast<uint16_t>(o), static_cast<uint16_t>(b));
  });
  add("add.noftz", "bf16", 'b', false, [=](uint64_t o, uint64_t b, uint64_t) {
    return bf16_sum(static_cast<uint16_t>(o), static_cast<uint16_t>(b));
  });
  add("add.noftz", "f16x2", 'E', false, pairs(half_sum));
  add("add.noftz", "bf16x2", 'B', false, pairs(bf16_sum));

  const std::string wide =
      ".reg .b128 %q, %o, %c;\n  mov.b128 %q, {S0, S1};\n  mov.b128 %c, {S2, S3};\n  "
      "st.global.v2.b64 [%out], {S2, S3};\n  ";
  const std::string show = "mov.b128 {D0, D1}, %o;\n  ld.global.v2.b64 {D2, D3}, [%out];";
  list->add("atom.global.exch.b128", wide + "atom.global.exch.b128 %o, [%out], %q;\n  " + show,
            "dddd", "dddd",
            [](In in, Out out) { out[0] = in[2], out[1] = in[3], out[2] = in[0], out[3] = in[1]; });
  list->add("atom.global.cas.b128",
            wide +
                "atom.global.cas.b128 %o, [%out], %c, %q;\n  atom.global.cas.b128 %c, [%out], %c, "
                "%c;\n  " +
                show,
            "dddd", "dddd",
            [](In in, Out out) { out[0] = in[2], out[1] = in[3], out[2] = in[0], out[3] = in[1]; });
  list->add("ld.b128 st.b128",
            ".reg .b128 %q;\n  ld.global.b128 %q, [%in];\n  st.global.b128 [%out], %q;\n  "
            "ld.global.v2.b64 {D0, D1}, [%out];",
            "dd", "dd", [](In in, Out out) { out[0] = in[0], out[1] = in[1]; });
  list->add("red.global.add.v2.f32",
            "st.global.v2.b32 [%out], {S0, S1};\n  red.relaxed.gpu.global.add.v2.f32 [%out], {S2, "
            "S3};\n  ld.global.v2.b32 {D0, D1}, [%out];",
            "ff", "wwww", [](In in, Out out) {
              out[0] = word(f32(in[0]) + f32(in[2])), out[1] = word(f32(in[1]) + f32(in[3]));
            });
  list->add("red.global.add.noftz.v4.f16",
            "st.global.v4.b16 [%out], {S0, S1, S2, S3};\n  red.relaxed.gpu.global.add.noftz.v4.f16 "
            "[%out], {S3, S2, S1, S0};\n"
            "  ld.global.v4.b16 {D0, D1, D2, D3}, [%out];",
            "eeee", "eeee", [=](In in, Out out) {
              for (int k = 0; k < 4; ++k)
                out[k] = half_sum(static_cast<uint16_t>(in[k]), static_cast<uint16_t>(in[3 - k]));
            });

  // All threads of a block add to one word; after a barrier all of them see the sum.
  list->add_whole("contended shared atomics",
                  ".shared .b32 total;\n  .shared .b64 wide;\n  .reg .b64 %ws;\n  st.shared.u32 "
                  "[total], 0;\n  st.shared.u64 [wide], 0;\n  bar.sync 0;\n"
                  "  red.shared.add.u32 [total], S0;\n  cvt.u64.u32 %ws, S0;\n  "
                  "atom.shared.add.u64 %ws, [wide], %ws;\n  bar.sync 0;\n"
                  "  ld.shared.u32 D0, [total];\n  ld.shared.u64 D1, [wide];",
                  "rd", "r", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
                    for (size_t block = 0; block * 256 < in.size(); ++block) {
                      uint64_t sum = 0;
                      for (size_t t = 0; t < 256; ++t) sum += in[block * 256 + t];
                      for (size_t t = 0; t < 256; ++t) {
                        (*out)[2 * (block * 256 + t)] = sum & 0xffffffff;
                        (*out)[2 * (block * 256 + t) + 1] = sum;
                      }
                    }
                  });
}

void add_async(CaseList* list) {
  list->add("cp.async",
            ".shared .align 16 .b8 area[4096];\n  .reg .b32 %a;\n  mov.u32 %a, area;\n  shl.b32 "
            "%z, %t, 4;\n  add.u32 %a, %a, %z;\n"
            "  cp.async.ca.shared.global [%a], [%in], 8;\n  cp.async.ca.shared.global [%a+8], "
            "[%in+8], 8, 4;\n"
            "  cp.async.commit_group;\n  cp.async.wait_group 0;\n  cp.async.wait_all;\n  "
            "ld.shared.v2.b64 {D0, D1}, [%a];",
            "dd", "dd", [](In in, Out out) { out[0] = in[0], out[1] = in[1] & 0xffffffff; });
  // One thread copies the block's 2048 bytes of input. All threads wait until the copy is complete.
  list->add_whole(
      "cp.async.bulk to shared",
      ".shared .align 128 .b8 area[2048];\n  .shared .align 8 .b64 object;\n  .reg .b32 %a, %m, "
      "%k;\n  .reg .pred %done, %others;\n"
      "  mov.u32 %a, area;\n  mov.u32 %m, object;\n  setp.ne.u32 %others, %t, 0;\n  @%others bra "
      "SKIP;\n"
      "  mbarrier.init.shared::cta.b64 [object], 1;\n  fence.mbarrier_init.release.cluster;\n"
      "  mbarrier.arrive.expect_tx.shared::cta.b64 _, [object], 2048;\n"
      "  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%a], [%in], 2048, "
      "[%m];\nSKIP:\n  bar.sync 0;\n"
      "WAIT:\n  mbarrier.try_wait.parity.shared::cta.b64 %done, [object], 0;\n  @!%done bra WAIT;\n"
      "  sub.u32 %k, 255, %t;\n  shl.b32 %k, %k, 3;\n  add.u32 %k, %k, %a;\n  ld.shared.u64 D0, "
      "[%k];",
      "d", "d", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
        for (size_t k = 0; k < in.size(); ++k) (*out)[k] = in[k / 256 * 256 + 255 - k % 256];
      });
  list->add_whole("cp.async.bulk to global",
                  ".shared .align 128 .b8 area[2048];\n  .reg .b32 %a, %k;\n  .reg .pred "
                  "%others;\n  mov.u32 %a, area;\n  sub.u32 %k, 255, %t;\n"
                  "  shl.b32 %k, %k, 3;\n  add.u32 %k, %k, %a;\n  st.shared.u64 [%k], S0;\n  "
                  "fence.proxy.async.shared::cta;\n  bar.sync 0;\n"
                  "  setp.ne.u32 %others, %t, 0;\n  @%others bra SKIP;\n  "
                  "cp.async.bulk.global.shared::cta.bulk_group [%out], [%a], 2048;\n"
                  "  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\nSKIP:\n  bar.sync "
                  "0;\n  ld.volatile.global.u64 D0, [%out];",
                  "d", "d", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
                    for (size_t k = 0; k < in.size(); ++k)
                      (*out)[k] = in[k / 256 * 256 + 255 - k % 256];
                  });
  // Every thread writes a value, arrives and waits. Then it sees the value of another thread.
  list->add_whole("mbarrier",
                  ".shared .align 8 .b64 object;\n  .shared .align 4 .b8 area[1024];\n  .reg .b32 "
                  "%a, %next;\n  .reg .b64 %state;\n  .reg .pred %done, %first;\n"
                  "  setp.eq.u32 %first, %t, 0;\n  @%first mbarrier.init.shared.b64 [object], "
                  "256;\n  bar.sync 0;\n"
                  "  mov.u32 %a, area;\n  shl.b32 %z, %t, 2;\n  add.u32 %z, %a, %z;\n  "
                  "st.shared.u32 [%z], S0;\n"
                  "  mbarrier.arrive.shared.b64 %state, [object];\nWAIT:\n  "
                  "mbarrier.test_wait.shared.b64 %done, [object], %state;\n  @!%done bra WAIT;\n"
                  "  add.u32 %next, %t, 37;\n  and.b32 %next, %next, 255;\n  shl.b32 %z, %next, "
                  "2;\n  add.u32 %z, %a, %z;\n  ld.shared.u32 D0, [%z];\n"
                  "  mbarrier.arrive.shared.b64 _, [object];\nWAIT2:\n  "
                  "mbarrier.try_wait.parity.shared.b64 %done, [object], 1;\n  @!%done bra WAIT2;\n"
                  "  mbarrier.pending_count.b64 D1, %state;\n  setp.gt.u32 %done, D1, 0;\n  "
                  "selp.u32 D1, 1, 0, %done;",
                  "rr", "r", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
                    for (size_t k = 0; k < in.size(); ++k) {
                      (*out)[2 * k] = in[k / 256 * 256 + (k + 37) % 256];
                      (*out)[2 * k + 1] = 1;
                    }
                  });
}

}  // namespace

void add_memory_cases(CaseList* list) {
  list->family("load/store");
  add_spaces(list);
  add_qualified(list);
  list->family("atomics");
  add_atomics(list);
  list->family("async");
  add_async(list);
}

}  // namespace softgpu::test
