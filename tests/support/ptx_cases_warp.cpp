#include <algorithm>
#include <bit>
#include <string>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

using Warp = std::function<void(const uint64_t* in, size_t sources, uint64_t* out, size_t outputs)>;

// A reference that is called once per warp, with 32 threads.
WholeReference by_warp(size_t sources, size_t outputs, Warp f) {
  return [=](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
    for (size_t w = 0; w * 32 * sources < in.size(); ++w)
      f(in.data() + w * 32 * sources, sources, out->data() + w * 32 * outputs, outputs);
  };
}

void add_shuffles(CaseList* list) {
  for (const std::string mode : {"up", "down", "bfly", "idx"}) {
    for (const int width : {32, 8}) {
      const int clamp = mode == "up" ? 0 : 31;
      const int c = (32 - width) << 8 | clamp;
      const std::string name = "shfl.sync." + mode + " width " + std::to_string(width);
      list->add_whole(
          name, "shfl.sync." + mode + ".b32 D0|D1, S0, S1, " + std::to_string(c) + ", 0xffffffff;",
          "rp", "rn", by_warp(2, 2, [=](const uint64_t* in, size_t, uint64_t* out, size_t) {
            for (int l = 0; l < 32; ++l) {
              const int b = static_cast<int>(in[2 * l + 1] & 31);
              const int first = l / width * width, last = first + width - 1;
              int from = l;
              bool valid = false;
              if (mode == "up") from = l - b, valid = from >= first;
              if (mode == "down") from = l + b, valid = from <= last;
              if (mode == "bfly") from = l ^ b, valid = from <= last;
              if (mode == "idx") from = first + (b & (width - 1)), valid = true;
              out[2 * l] = in[2 * (valid ? from : l)];
              out[2 * l + 1] = valid;
            }
          }));
    }
  }
}

void add_votes(CaseList* list) {
  for (const std::string mode : {"all", "any", "uni"}) {
    list->add_whole("vote.sync." + mode,
                    "vote.sync." + mode + ".pred D0, S0, 0xffffffff;\n  vote.sync." + mode +
                        ".pred D1, !S1, -1;",
                    "pp", "pp",
                    by_warp(2, 2, [=](const uint64_t* in, size_t, uint64_t* out, size_t) {
                      for (int which = 0; which < 2; ++which) {
                        int yes = 0;
                        for (int l = 0; l < 32; ++l)
                          yes += (in[2 * l + which] != 0) != (which == 1);
                        const bool r = mode == "all"   ? yes == 32
                                       : mode == "any" ? yes != 0
                                                       : yes == 0 || yes == 32;
                        for (int l = 0; l < 32; ++l) out[2 * l + which] = r;
                      }
                    }));
  }
  list->add_whole("vote.sync.ballot", "vote.sync.ballot.b32 D0, S0, 0xffffffff;", "r", "p",
                  by_warp(1, 1, [](const uint64_t* in, size_t, uint64_t* out, size_t) {
                    uint64_t bits = 0;
                    for (int l = 0; l < 32; ++l) bits |= in[l] << l;
                    std::fill_n(out, 32, bits);
                  }));
  list->add_whole(
      "vote in halves",
      ".reg .pred %low;\n  .reg .b32 %lane;\n  mov.u32 %lane, %laneid;\n  setp.lt.u32 %low, %lane, "
      "16;\n"
      "  @%low bra LOW;\n  vote.sync.ballot.b32 D0, S0, 0xffff0000;\n  bra DONE;\nLOW:\n  "
      "vote.sync.ballot.b32 D0, S0, 0x0000ffff;\nDONE:\n  bar.warp.sync -1;",
      "r", "p", by_warp(1, 1, [](const uint64_t* in, size_t, uint64_t* out, size_t) {
        uint64_t bits = 0;
        for (int l = 0; l < 32; ++l) bits |= in[l] << l;
        for (int l = 0; l < 32; ++l) out[l] = l < 16 ? bits & 0xffff : bits & 0xffff0000;
      }));
  list->add_whole("members by lane",
                  ".reg .b32 %lane, %tile, %m;\n  mov.u32 %lane, %laneid;\n  and.b32 %tile, %lane, "
                  "24;\n  mov.u32 %m, 255;\n  shl.b32 %m, %m, %tile;\n"
                  "  vote.sync.ballot.b32 D0, S0, %m;\n  shfl.sync.idx.b32 D1, S1, 3, 0x181f, %m;",
                  "rr", "pr", by_warp(2, 2, [](const uint64_t* in, size_t, uint64_t* out, size_t) {
                    for (int l = 0; l < 32; ++l) {
                      const int first = l / 8 * 8;
                      out[2 * l] = 0;
                      for (int k = first; k < first + 8; ++k) out[2 * l] |= in[2 * k] << k;
                      out[2 * l + 1] = in[2 * (first + 3) + 1];
                    }
                  }));
}

void add_matches(CaseList* list) {
  for (const int bits : {32, 64}) {
    const std::string l(1, bits == 32 ? 'r' : 'd');
    const std::string t = "b" + std::to_string(bits);
    const std::string narrow = "and." + t + " S0, S0, 3;\n  ";  // few values, so that threads match
    list->add_whole("match.any.sync." + t, narrow + "match.any.sync." + t + " D0, S0, 0xffffffff;",
                    "r", l, by_warp(1, 1, [](const uint64_t* in, size_t, uint64_t* out, size_t) {
                      for (int a = 0; a < 32; ++a) {
                        out[a] = 0;
                        for (int b = 0; b < 32; ++b)
                          out[a] |= static_cast<uint64_t>((in[a] & 3) == (in[b] & 3)) << b;
                      }
                    }));
    list->add_whole("match.all.sync." + t,
                    narrow + "match.all.sync." + t + " D0|D1, S0, 0xffffffff;\n  match.all.sync." +
                        t + " D2|D3, 5, -1;",
                    "rprp", l, by_warp(1, 4, [](const uint64_t* in, size_t, uint64_t* out, size_t) {
                      bool all = true;
                      for (int a = 0; a < 32; ++a) all = all && (in[a] & 3) == (in[0] & 3);
                      for (int a = 0; a < 32; ++a)
                        out[4 * a] = all ? 0xffffffff : 0, out[4 * a + 1] = all,
                                out[4 * a + 2] = 0xffffffff, out[4 * a + 3] = 1;
                    }));
  }
}

void add_reductions(CaseList* list) {
  struct Form {
    const char* name;
    uint64_t (*f)(uint64_t, uint64_t);
  };
  static constexpr Form kForms[] = {
      {"add.u32", [](uint64_t a, uint64_t b) { return (a + b) & 0xffffffff; }},
      {"add.s32", [](uint64_t a, uint64_t b) { return (a + b) & 0xffffffff; }},
      {"min.u32", [](uint64_t a, uint64_t b) { return std::min(a, b); }},
      {"max.u32", [](uint64_t a, uint64_t b) { return std::max(a, b); }},
      {"min.s32",
       [](uint64_t a, uint64_t b) {
         return static_cast<int32_t>(a) < static_cast<int32_t>(b) ? a : b;
       }},
      {"max.s32",
       [](uint64_t a, uint64_t b) {
         return static_cast<int32_t>(a) > static_cast<int32_t>(b) ? a : b;
       }},
      {"and.b32", [](uint64_t a, uint64_t b) { return a & b; }},
      {"or.b32", [](uint64_t a, uint64_t b) { return a | b; }},
      {"xor.b32", [](uint64_t a, uint64_t b) { return a ^ b; }},
  };
  for (const Form& form : kForms) {
    const auto f = form.f;
    list->add_whole(std::string("redux.sync.") + form.name,
                    std::string("redux.sync.") + form.name + " D0, S0, 0xffffffff;", "r", "r",
                    by_warp(1, 1, [f](const uint64_t* in, size_t, uint64_t* out, size_t) {
                      uint64_t total = in[0];
                      for (int l = 1; l < 32; ++l) total = f(total, in[l]);
                      std::fill_n(out, 32, total);
                    }));
  }
  list->add_whole("elect.sync", "elect.sync D0|D1, 0xffffffff;", "rp", "r",
                  by_warp(1, 2, [](const uint64_t*, size_t, uint64_t* out, size_t) {
                    for (int l = 0; l < 32; ++l) out[2 * l] = 0, out[2 * l + 1] = l == 0;
                  }));
  list->add_whole("activemask", "activemask.b32 D0;", "r", "r",
                  by_warp(1, 1, [](const uint64_t*, size_t, uint64_t* out, size_t) {
                    std::fill_n(out, 32, uint64_t{0xffffffff});
                  }));
}

void add_barriers(CaseList* list) {
  struct Form {
    const char* code;
    const char* d;
    int kind;
  };
  for (const Form& form :
       {Form{"bar.red.popc.u32 D0, 0, S0;", "r", 0}, Form{"bar.red.and.pred D0, 1, !S0;", "p", 1},
        Form{"bar.red.or.pred D0, 2, S0;", "p", 2},
        Form{"barrier.cta.red.popc.aligned.u32 D0, 3, 256, S0;", "r", 0}}) {
    const int kind = form.kind;
    list->add_whole(form.code, form.code, form.d, "p",
                    [kind](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
                      for (size_t block = 0; block < in.size(); block += 256) {
                        uint64_t yes = 0;
                        for (size_t t = 0; t < 256; ++t) yes += in[block + t];
                        const uint64_t r = kind == 0 ? yes : kind == 1 ? yes == 0 : yes != 0;
                        std::fill_n(out->begin() + static_cast<std::ptrdiff_t>(block), 256, r);
                      }
                    });
  }
  // Half of the block produces and the other half consumes, with named barriers.
  list->add_whole(
      "bar.arrive and bar.sync",
      ".shared .align 4 .b8 area[1024];\n  .reg .pred %low;\n  .reg .b32 %a;\n  mov.u32 %a, "
      "area;\n  shl.b32 %z, %t, 2;\n  add.u32 %a, %a, %z;\n"
      "  setp.lt.u32 %low, %t, 128;\n  mov.u32 D0, 0;\n  @!%low bra CONSUME;\n  st.shared.u32 "
      "[%a], S0;\n  bar.arrive 5, 256;\n  bra DONE;\n"
      "CONSUME:\n  bar.sync 5, 256;\n  ld.shared.u32 D0, [%a+-512];\nDONE:\n  bar.sync 0;",
      "r", "r", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
        for (size_t k = 0; k < in.size(); ++k) (*out)[k] = k % 256 < 128 ? 0 : in[k - 128];
      });
  list->add_whole("reversal through shared memory",
                  ".shared .align 4 .b8 area[1024];\n  .reg .b32 %a, %r;\n  mov.u32 %a, area;\n  "
                  "shl.b32 %z, %t, 2;\n  add.u32 %z, %z, %a;\n  st.shared.u32 [%z], S0;\n"
                  "  bar.sync 0;\n  sub.u32 %r, 255, %t;\n  shl.b32 %r, %r, 2;\n  add.u32 %r, %r, "
                  "%a;\n  ld.shared.u32 D0, [%r];",
                  "r", "r", [](const std::vector<uint64_t>& in, std::vector<uint64_t>* out) {
                    for (size_t k = 0; k < in.size(); ++k)
                      (*out)[k] = in[k / 256 * 256 + 255 - k % 256];
                  });
}

// Diverged control flow. Every thread's result depends only on its own input.
void add_control(CaseList* list) {
  list->add(
      "loop",
      ".reg .b32 %i, %n7;\n  .reg .pred %more;\n  and.b32 %n7, S0, 127;\n  mov.u32 %i, 0;\n  "
      "mov.u32 D0, 1;\nLOOP:\n  setp.lt.u32 %more, %i, %n7;\n"
      "  @!%more bra DONE;\n  mad.lo.u32 D0, D0, 3, %i;\n  add.u32 %i, %i, 1;\n  bra LOOP;\nDONE:",
      "r", "r", [](In in, Out out) {
        uint32_t v = 1;
        for (uint32_t i = 0; i < (in[0] & 127); ++i) v = v * 3 + i;
        out[0] = v;
      });
  list->add("brx.idx",
            ".reg .b32 %k;\n  and.b32 %k, S0, 3;\n  targets: .branchtargets T0, T1, T2, T3;\n  "
            "brx.idx %k, targets;\n"
            "T0:\n  mov.u32 D0, S1;\n  bra JOIN;\nT1:\n  not.b32 D0, S1;\n  bra JOIN;\nT2:\n  "
            "add.u32 D0, S1, 5;\n  bra JOIN;\nT3:\n  xor.b32 D0, S1, S0;\nJOIN:",
            "r", "rr", [](In in, Out out) {
              const uint64_t v = in[1];
              const uint64_t results[] = {v, ~v & 0xffffffff, (v + 5) & 0xffffffff, v ^ in[0]};
              out[0] = results[in[0] & 3];
            });
  list->add("nested branches",
            ".reg .pred %pa, %pb;\n  setp.lt.s32 %pa, S0, 0;\n  setp.lt.s32 %pb, S1, 0;\n  @%pa "
            "bra NEG;\n  @%pb bra PN;\n  add.u32 D0, S0, S1;\n  bra END;\n"
            "PN:\n  sub.u32 D0, S0, S1;\n  bra END;\nNEG:\n  @%pb bra NN;\n  mul.lo.u32 D0, S0, "
            "S1;\n  bra END;\nNN:\n  xor.b32 D0, S0, S1;\nEND:",
            "r", "rr", [](In in, Out out) {
              const bool a = (in[0] >> 31) != 0, b = (in[1] >> 31) != 0;
              out[0] =
                  (a ? (b ? in[0] ^ in[1] : in[0] * in[1]) : (b ? in[0] - in[1] : in[0] + in[1])) &
                  0xffffffff;
            });
}

}  // namespace

void add_warp_cases(CaseList* list) {
  list->family("warp");
  add_shuffles(list);
  add_votes(list);
  add_matches(list);
  add_reductions(list);
  list->family("block");
  add_barriers(list);
  list->family("control");
  add_control(list);
}

}  // namespace softgpu::test
