#include "tests/support/ptx_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/support/ptx_case_builder.h"

namespace softgpu::test {
namespace {

constexpr uint32_t kBlocks = 4;
constexpr uint32_t kThreads = 256;

constexpr uint64_t kEdgeIntegers[] = {
    0,
    1,
    2,
    3,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    0x7fff,
    0x8000,
    0x8001,
    0xffff,
    0x10000,
    0x7fffffff,
    0x80000000,
    0x80000001,
    0xffffffff,
    0x100000000,
    0x7fffffffffffffff,
    0x8000000000000000,
    0xffffffffffffffff,
    0xfffffffffffffffe,
    0xffffffff80000000,
    0xaaaaaaaaaaaaaaaa,
    0x5555555555555555,
};
constexpr uint32_t kEdgeF32[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000,
    0x00800001, 0x3f7fffff, 0x3f800000, 0xbf800000, 0x3f800001, 0x3f000000, 0xbf000000, 0x3fc00000,
    0x40200000, 0x40600000, 0x4b000000, 0x4b7fffff, 0x4b800000, 0x4f000000, 0xcf000000, 0x4effffff,
    0x4f800000, 0x5f000000, 0xdf000000, 0x5f800000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000,
    0x7fc00000, 0xffc00000, 0x7fffffff, 0x7e800000, 0x7f000000, 0x00400000, 0x33800000, 0x34000000,
};
constexpr uint64_t kEdgeF64[] = {
    0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x800fffffffffffff,
    0x0010000000000000, 0x3fefffffffffffff, 0x3ff0000000000000, 0xbff0000000000000,
    0x3ff0000000000001, 0x3fe0000000000000, 0x4004000000000000, 0x400c000000000000,
    0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000000000, 0x41efffffffe00000,
    0x41f0000000000000, 0x43e0000000000000, 0xc3e0000000000000, 0x43f0000000000000,
    0x36a0000000000000, 0x3690000000000001, 0x380fffffffffffff, 0x47efffffe0000000,
    0x47efffffefffffff, 0x47effffff0000000, 0x7fefffffffffffff, 0xffefffffffffffff,
    0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0xfff8000000000000,
};
constexpr uint16_t kEdgeHalf[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x3bff,
                                  0x3c00, 0xbc00, 0x3c01, 0x3800, 0x4100, 0x6400, 0x7bff,
                                  0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7fff, 0x3555};
constexpr uint16_t kEdgeBf16[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x3f7f,
                                  0x3f80, 0xbf80, 0x3f81, 0x3f00, 0x4020, 0x4b00, 0x7f7f,
                                  0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7fff, 0x3eab};

uint64_t integer(Random& random) {
  switch (random.below(4)) {
    case 0:
      return kEdgeIntegers[random.below(std::size(kEdgeIntegers))];
    case 1:
      return static_cast<uint64_t>(static_cast<int64_t>(random.below(2001)) - 1000);
    case 2:
      return random.next() >> random.below(64);
    default:
      return random.next();
  }
}
float uniform(Random& random, float low, float high) {
  return low + (high - low) * static_cast<float>(random.next() >> 40) * 0x1p-24f;
}
uint32_t float_bits(Random& random) {
  switch (random.below(4)) {
    case 0:
      return kEdgeF32[random.below(std::size(kEdgeF32))];
    case 1:
      return cast_bits<uint32_t>(uniform(random, -100, 100));
    case 2:
      return 0x3f000000 + random.below(0x2000000) + (random.below(2) << 31);  // +-[0.5, 8)
    default:
      return static_cast<uint32_t>(random.next());
  }
}
uint64_t double_bits(Random& random) {
  switch (random.below(4)) {
    case 0:
      return kEdgeF64[random.below(std::size(kEdgeF64))];
    case 1:
      return cast_bits<uint64_t>(static_cast<double>(static_cast<int64_t>(random.next())) *
                                 0x1p-57);
    case 2:
      return 0x3fe0000000000000 + random.next() % 0x40000000000000;
    default:
      return random.next();
  }
}
uint64_t half_bits(Random& random) {
  return random.below(3) == 0 ? kEdgeHalf[random.below(std::size(kEdgeHalf))]
                              : random.next() & 0xffff;
}
uint64_t bf16_bits(Random& random) {
  switch (random.below(3)) {
    case 0:
      return kEdgeBf16[random.below(std::size(kEdgeBf16))];
    case 1:
      return (0x3f80 + random.below(0x200)) ^ (random.below(2) << 15);
    default:
      return random.next() & 0xffff;
  }
}

uint64_t input_word(char letter, Random& random) {
  switch (letter) {
    case 'h':
      return integer(random) & 0xffff;
    case 'r':
      return integer(random) & 0xffffffff;
    case 'd':
      return integer(random);
    case 'p':
      return random.below(2);
    case 'n':
      return random.below(8) == 0 ? integer(random) & 0xffffffff : random.below(70);
    case 'y':
      return std::max<uint64_t>(integer(random) & 0xffff, 1);
    case 'z':
      return std::max<uint64_t>(integer(random) & 0xffffffff, 1);
    case 'x':
      return std::max<uint64_t>(integer(random), 1);
    case 'f':
      return float_bits(random);
    case 'g':
      return double_bits(random);
    case 'e':
      return half_bits(random);
    case 'b':
      return bf16_bits(random);
    case 'E':
      return half_bits(random) | half_bits(random) << 16;
    case 'B':
      return bf16_bits(random) | bf16_bits(random) << 16;
    case 't':
      return cast_bits<uint32_t>(uniform(random, -4, 4));
    case 'v':
      return cast_bits<uint32_t>(uniform(random, 0, 1) *
                                     std::ldexp(1.0f, static_cast<int>(random.below(40)) - 20) +
                                 1e-30f);
    default:
      return cast_bits<uint32_t>(uniform(random, -1, 1) *
                                 std::ldexp(1.0f, static_cast<int>(random.below(20)) - 10));
  }
}

// The width of the registers that a letter names (ptx_case_builder.h).
int register_bits(char letter) {
  switch (letter) {
    case 'p':
      return 1;
    case 'h':
    case 'y':
    case 'e':
    case 'b':
      return 16;
    case 'd':
    case 'x':
    case 'g':
      return 64;
    default:
      return 32;
  }
}

bool is_nan(Word type, uint64_t w) {
  switch (type) {
    case Word::kF32:
      return std::isnan(f32(w));
    case Word::kF64:
      return std::isnan(f64(w));
    case Word::kF16:
      return (w & 0x7fff) > 0x7c00;
    case Word::kBf16:
      return (w & 0x7fff) > 0x7f80;
    default:
      return false;
  }
}
double value_of(Word type, uint64_t w) {
  switch (type) {
    case Word::kF32:
      return f32(w);
    case Word::kF64:
      return f64(w);
    case Word::kF16:
      return half_value(static_cast<uint16_t>(w));
    default:
      return bf16_value(static_cast<uint16_t>(w));
  }
}
// The distance of two values, in representable numbers.
double ulp_distance(Word type, uint64_t a, uint64_t b) {
  const int bits = type == Word::kF64 ? 64 : type == Word::kF32 ? 32 : 16;
  const auto order = [bits](uint64_t w) {
    const bool negative = (w >> (bits - 1) & 1) != 0;
    const auto magnitude = static_cast<__int128>(w & ((uint64_t{1} << (bits - 1)) - 1));
    return negative ? -1 - magnitude : magnitude;  // -0 is not +0
  };
  const __int128 d = order(a) - order(b);
  return static_cast<double>(d < 0 ? -d : d);
}

void compare_word(const PtxCase& c, Word type, uint64_t got, uint64_t want, bool* good,
                  Comparison* out) {
  if (type == Word::kF16x2 || type == Word::kBf16x2) {
    const Word half = type == Word::kF16x2 ? Word::kF16 : Word::kBf16;
    compare_word(c, half, got & 0xffff, want & 0xffff, good, out);
    compare_word(c, half, got >> 16, want >> 16, good, out);
    return;
  }
  ++out->words;
  if (got == want) {
    ++out->exact;
    return;
  }
  const bool is_float =
      type == Word::kF16 || type == Word::kBf16 || type == Word::kF32 || type == Word::kF64;
  if (is_float && is_nan(type, got) && is_nan(type, want)) {
    ++out->nan_bits;
    return;
  }
  bool close = false;
  if (is_float && !is_nan(type, got) && !is_nan(type, want)) {
    const double ulp = ulp_distance(type, got, want);
    const double error = std::abs(value_of(type, got) - value_of(type, want));
    const bool approximate = c.max_ulp + c.max_relative + c.max_absolute != 0;
    close = approximate && (ulp <= c.max_ulp || error <= c.max_absolute ||
                            error <= c.max_relative * std::abs(value_of(type, want)));
    out->worst_ulp = std::max(out->worst_ulp, ulp);
  }
  if (!close) {
    ++out->bad;
    *good = false;
  }
}

}  // namespace

Random::Random(std::string_view seed) : state_(0xcbf29ce484222325) {
  for (const char c : seed) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
}
uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

bool becomes_subnormal(__float128 exact, int precision, int least, Round round) {
  const bool negative = exact < 0;
  const __float128 magnitude = negative ? -exact : exact;
  const auto power_of_two = [](int n) { return static_cast<__float128>(std::ldexp(1.0, n)); };
  const __float128 least_normal = power_of_two(least);
  // Rounding away from zero: everything above the predecessor of the smallest normal number becomes
  // the smallest normal number.
  if (round == (negative ? Round::kDown : Round::kUp))
    return magnitude <= least_normal - least_normal * power_of_two(-precision);
  if (round == Round::kNearest)
    return magnitude < least_normal - least_normal * power_of_two(-precision - 1);
  return magnitude < least_normal;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

PtxCase* CaseList::make(const std::string& name, const std::string& code,
                        const std::string& destinations, const std::string& sources) {
  PtxCase& c = cases_->emplace_back();
  c.family = family_;
  c.name = name;
  c.entry = "case_" + std::to_string(cases_->size());
  c.blocks = kBlocks;
  c.threads = kThreads;
  c.sources = static_cast<uint32_t>(sources.size());
  for (const char d : destinations) c.outputs.push_back(static_cast<Word>(d));

  std::string& k = c.kernel;
  const std::string in = std::to_string(8 * sources.size());
  const std::string out = std::to_string(8 * destinations.size());
  k = "// " + family_ + ": " + name + "\n.visible .entry " + c.entry +
      "(.param .u64 input, .param .u64 output)\n{\n"
      "  .reg .b64 %in, %out, %w;\n  .reg .b32 %id, %t, %b, %n, %z;\n"
      "  mov.u32 %t, %tid.x;\n  mov.u32 %b, %ctaid.x;\n  mov.u32 %n, %ntid.x;\n"
      "  mad.lo.s32 %id, %b, %n, %t;\n"
      "  ld.param.u64 %in, [input];\n  mul.wide.u32 %w, %id, " +
      in +
      ";\n  add.u64 %in, %in, %w;\n"
      "  ld.param.u64 %out, [output];\n  mul.wide.u32 %w, %id, " +
      out + ";\n  add.u64 %out, %out, %w;\n";
  for (size_t s = 0; s < sources.size(); ++s) {
    const int bits = register_bits(sources[s]);
    const std::string reg = "%s" + std::to_string(s);
    const std::string at = "[%in+" + std::to_string(8 * s) + "]";
    if (bits == 1) {
      k += "  .reg .pred " + reg + ";\n  ld.global.u32 %z, " + at + ";\n  setp.ne.u32 " + reg +
           ", %z, 0;\n";
    } else {
      k += "  .reg .b" + std::to_string(bits) + " " + reg + ";\n  ld.global.b" +
           std::to_string(bits) + " " + reg + ", " + at + ";\n";
    }
  }
  for (size_t d = 0; d < destinations.size(); ++d) {
    const int bits = register_bits(destinations[d]);
    k += "  .reg " + (bits == 1 ? std::string(".pred") : ".b" + std::to_string(bits)) + " %d" +
         std::to_string(d) + ";\n";
  }
  std::string body = code;
  for (int n = 0; n < 8; ++n) {
    body = replace_all(body, "S" + std::to_string(n), "%s" + std::to_string(n));
    body = replace_all(body, "D" + std::to_string(n), "%d" + std::to_string(n));
  }
  k += "  " + body + "\n";
  for (size_t d = 0; d < destinations.size(); ++d) {
    const std::string reg = "%d" + std::to_string(d);
    const std::string at = "[%out+" + std::to_string(8 * d) + "]";
    switch (register_bits(destinations[d])) {
      case 1:
        k += "  selp.u64 %w, 1, 0, " + reg + ";\n";
        break;
      case 16:
        k += "  cvt.u64.u16 %w, " + reg + ";\n";
        break;
      case 32:
        k += "  cvt.u64.u32 %w, " + reg + ";\n";
        break;
      default:
        k += "  mov.u64 %w, " + reg + ";\n";
        break;
    }
    k += "  st.global.u64 " + at + ", %w;\n";
  }
  k += "  ret;\n}\n";

  Random random(family_ + name);
  for (uint32_t t = 0; t < c.blocks * c.threads; ++t) {
    for (const char s : sources) c.input.push_back(input_word(s, random));
  }
  c.expected.resize(size_t{c.blocks} * c.threads * destinations.size());
  return &c;
}

void CaseList::add(const std::string& name, const std::string& code,
                   const std::string& destinations, const std::string& sources,
                   const Reference& reference, Tolerance tolerance) {
  add_fixed(name, code, destinations, sources, nullptr, reference, tolerance);
}

void CaseList::add_fixed(const std::string& name, const std::string& code,
                         const std::string& destinations, const std::string& sources,
                         const std::function<void(uint64_t*, Random&)>& fix,
                         const Reference& reference, Tolerance tolerance) {
  PtxCase& c = *make(name, code, destinations, sources);
  c.max_ulp = tolerance.ulp;
  c.max_relative = tolerance.relative;
  c.max_absolute = tolerance.absolute;
  Random random("fix" + name);
  for (uint32_t t = 0; t < c.blocks * c.threads; ++t) {
    uint64_t* in = c.input.data() + size_t{t} * c.sources;
    if (fix) fix(in, random);
    reference(in, c.expected.data() + t * destinations.size());
  }
}

void CaseList::add_whole(const std::string& name, const std::string& code,
                         const std::string& destinations, const std::string& sources,
                         const WholeReference& reference) {
  PtxCase& c = *make(name, code, destinations, sources);
  reference(c.input, &c.expected);
}

const std::vector<PtxCase>& ptx_cases() {
  static const std::vector<PtxCase> cases = [] {
    std::vector<PtxCase> all;
    CaseList list(&all);
    add_integer_cases(&list);
    add_bit_cases(&list);
    add_compare_cases(&list);
    add_float_cases(&list);
    add_half_cases(&list);
    add_convert_cases(&list);
    add_tiny_cases(&list);
    add_memory_cases(&list);
    add_warp_cases(&list);
    return all;
  }();
  return cases;
}

std::string ptx_module(const std::vector<const PtxCase*>& cases) {
  std::string text = ".version 8.4\n.target sm_90\n.address_size 64\n\n";
  for (const PtxCase* c : cases) text += c->kernel + "\n";
  return text;
}

Comparison compare(const PtxCase& c, const std::vector<uint64_t>& got,
                   const std::vector<uint64_t>& expected) {
  Comparison result;
  const size_t width = c.outputs.size();
  for (size_t k = 0; k < expected.size(); ++k) {
    bool good = true;
    compare_word(c, c.outputs[k % width], got[k], expected[k], &good, &result);
    if (good || !result.first_bad.empty()) continue;
    char text[96];
    std::snprintf(text, sizeof text, "thread %zu, result %zu: inputs", k / width, k % width);
    result.first_bad = text;
    for (uint32_t s = 0; s < c.sources; ++s) {
      std::snprintf(text, sizeof text, " %#llx",
                    static_cast<unsigned long long>(c.input[k / width * c.sources + s]));
      result.first_bad += text;
    }
    std::snprintf(text, sizeof text, ", got %#llx, expected %#llx",
                  static_cast<unsigned long long>(got[k]),
                  static_cast<unsigned long long>(expected[k]));
    result.first_bad += text;
  }
  return result;
}

}  // namespace softgpu::test
