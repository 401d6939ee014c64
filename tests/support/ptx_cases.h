// Kernels that each exercise one PTX instruction form, with inputs and independently computed
// results. The unit tests run them on softgpu; tests/gpu/compare_ptx runs the same kernels through
// a real driver. Only data and functions: no threads, no CUDA.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace softgpu::test {

// How a result word is compared, and the class of its register.
enum class Word : char {
  kU16 = 'h',
  kU32 = 'r',
  kU64 = 'd',
  kPredicate = 'p',
  kF16 = 'e',
  kBf16 = 'b',
  kF16x2 = 'E',
  kBf16x2 = 'B',
  kF32 = 'f',
  kF64 = 'g',
};

struct PtxCase {
  std::string family;  // "integer"
  std::string name;    // "add.rn.ftz.f32"
  std::string entry;   // name of the kernel: (.param .u64 input, .param .u64 output)
  std::string kernel;  // its PTX
  uint32_t blocks = 1;
  uint32_t threads = 256;
  uint32_t sources = 0;  // 64-bit input words per thread; outputs.size() result words per thread
  std::vector<Word> outputs;
  std::vector<uint64_t> input;
  std::vector<uint64_t> expected;
  // Largest allowed error: in units in the last place, relative to the magnitude, or absolute. An
  // approximate result is good if it meets one of the three. All zero: exact.
  double max_ulp = 0;
  double max_relative = 0;
  double max_absolute = 0;
};

// Every case, always in the same order and with the same inputs.
const std::vector<PtxCase>& ptx_cases();

// The PTX of a module with the kernels of these cases.
std::string ptx_module(const std::vector<const PtxCase*>& cases);

struct Comparison {
  size_t words = 0;
  size_t exact = 0;
  size_t nan_bits = 0;  // both NaN, with different bits: counted as good
  size_t bad = 0;
  double worst_ulp = 0;
  std::string first_bad;  // "thread 3: inputs ..., got ..., expected ..."
};
Comparison compare(const PtxCase& c, const std::vector<uint64_t>& got,
                   const std::vector<uint64_t>& expected);

}  // namespace softgpu::test
