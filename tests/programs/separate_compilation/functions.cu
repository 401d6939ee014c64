#include "separate_compilation/parts.h"

namespace {
__device__ int twice(int value) { return value * 2; }
__device__ int negate(int value) { return -value; }
__device__ int (*const table[2])(int) = {twice, negate};
}  // namespace

__device__ __noinline__ int scale(int value) {
  return value == 0 ? 1 : 3 * scale(value / 2) + value;
}
__device__ int apply(int which, int value) { return table[which](value); }
