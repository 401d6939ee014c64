#include "client/mirror/take_changes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "common/wire/marked_bytes.h"

namespace rcuda::client {
namespace {

#if defined(__x86_64__)
// Some versions of Clang have a separate feature for 512-bit registers, which zig, the compiler of
// the wheels, turns off.
#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ <= 20
#define RCUDA_AVX512 "avx512f,avx512bw,evex512"
#else
#define RCUDA_AVX512 "avx512f,avx512bw"
#endif
// A masked store writes the chosen bytes of a line at once and does not touch the others. `here` is
// never read, so the store cannot undo a write of another thread.
__attribute__((target(RCUDA_AVX512))) bool take_lines(std::byte* here, std::byte* known,
                                                      const std::byte* there, size_t length) {
  constexpr size_t kLine = 64;
  __mmask64 any = 0;
  for (size_t at = 0; at < length; at += kLine) {
    const size_t bytes = std::min(kLine, length - at);
    const __mmask64 valid = ~__mmask64{0} >> (kLine - bytes);
    const __m512i now = _mm512_maskz_loadu_epi8(valid, there + at);
    const __m512i before = _mm512_maskz_loadu_epi8(valid, known + at);
    const __mmask64 changed = _mm512_cmpneq_epi8_mask(now, before);
    if (changed == 0) continue;
    any |= changed;
    _mm512_mask_storeu_epi8(here + at, changed, now);
    _mm512_mask_storeu_epi8(known + at, valid, now);
  }
  return any != 0;
}

// Whether the processor has the instructions and the kernel saves the registers.
// (__builtin_cpu_supports needs a library that the wheels' compiler does not link.)
bool has_line_stores() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return false;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t kSaved = 0xe6;  // XMM and YMM, masks, both parts of ZMM
  return (low & kSaved) == kSaved && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
         (b & bit_AVX512F) != 0 && (b & bit_AVX512BW) != 0;
}
#endif

}  // namespace

bool take_changes_by_word(std::byte* here, std::byte* known, const std::byte* there,
                          size_t length) {
  constexpr size_t kPart = 512;  // compared first: most parts of a changed block are equal
  uint8_t marks[wire::mask_bytes(kPart)];
  bool any = false;
  for (size_t at = 0; at < length; at += kPart) {
    const size_t bytes = std::min(kPart, length - at);
    if (std::memcmp(there + at, known + at, bytes) == 0) continue;
    any = true;
    wire::mark_differences(there + at, known + at, bytes, marks);
    wire::write_marked(here + at, there + at, bytes, marks);
    std::memcpy(known + at, there + at, bytes);
  }
  return any;
}

bool take_changes(std::byte* here, std::byte* known, const std::byte* there, size_t length) {
#if defined(__x86_64__)
  static const bool by_line = has_line_stores();
  if (by_line) return take_lines(here, known, there, length);
#endif
  return take_changes_by_word(here, known, there, length);
}

}  // namespace rcuda::client
