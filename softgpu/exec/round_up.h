// Rounding for the layout of memory: variables, blocks, pages. Pure.
#pragma once

#include <cstdint>

namespace softgpu::exec {

// The least multiple of `step` that is not below `value`; `value` itself for step 0.
constexpr uint64_t round_up(uint64_t value, uint64_t step) {
  return step == 0 ? value : (value + step - 1) / step * step;
}

}  // namespace softgpu::exec
