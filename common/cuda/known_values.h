// Whether a value of an enumeration is known. The driver refuses unknown values.
#pragma once

#include <cuda.h>

namespace rcuda::cuda {

inline bool is_known(CUfunc_cache config) {
  return static_cast<unsigned>(config) <= CU_FUNC_CACHE_PREFER_EQUAL;
}

inline bool is_known(CUsharedconfig config) {
  return static_cast<unsigned>(config) <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
}

inline bool is_known(CUjit_option option) {
  return static_cast<unsigned>(option) < CU_JIT_NUM_OPTIONS;
}

inline bool is_known(CUlibraryOption option) {
  return static_cast<unsigned>(option) < CU_LIBRARY_NUM_OPTIONS;
}

inline bool is_known(CUmemLocationType type) {
  return static_cast<unsigned>(type) <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

}  // namespace rcuda::cuda
