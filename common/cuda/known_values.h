// Enumerations whose unknown values a driver refuses.
#pragma once

#include <cuda.h>

namespace rcuda::cuda {

inline bool is_known(CUfunc_cache config) {
  return static_cast<unsigned>(config) <= CU_FUNC_CACHE_PREFER_EQUAL;
}

inline bool is_known(CUsharedconfig config) {
  return static_cast<unsigned>(config) <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
}

}  // namespace rcuda::cuda
