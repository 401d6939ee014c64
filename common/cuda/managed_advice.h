// ManagedAdvice: keeps a program's advice about a range of managed memory, and answers
// cuMemRangeGetAttribute from it.
//
// A plain value; its owner guards it. Callers have checked the locations.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include <cuda.h>

namespace rcuda::cuda {

class ManagedAdvice {
 public:
  static bool uses_location(CUmem_advise advice) {
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
           advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  }

  // Records a piece of advice. Returns CUDA_ERROR_INVALID_VALUE if the advice is unknown.
  CUresult take(CUmem_advise advice, const CUmemLocation& location) {
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
        read_mostly_ = true;
        return CUDA_SUCCESS;
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        read_mostly_ = false;
        return CUDA_SUCCESS;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        preferred_ = location;
        return CUDA_SUCCESS;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        preferred_ = {};
        return CUDA_SUCCESS;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        std::erase(accessed_by_, as_device(location));
        if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY) accessed_by_.push_back(as_device(location));
        std::sort(accessed_by_.begin(), accessed_by_.end(), host_last);
        return CUDA_SUCCESS;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

  void prefetched_to(const CUmemLocation& location) { prefetched_ = location; }

  // Returns CUDA_ERROR_INVALID_VALUE for an unknown attribute or a wrong size.
  CUresult get(CUmem_range_attribute attribute, void* data, size_t bytes) const {
    switch (attribute) {
      case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        return put(data, bytes, read_mostly_);
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        return put(data, bytes, as_device(preferred_));
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        return put(data, bytes, static_cast<int>(preferred_.type));
      case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        return put(data, bytes, preferred_.id);
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        return put(data, bytes, as_device(prefetched_));
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        return put(data, bytes, static_cast<int>(prefetched_.type));
      case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        return put(data, bytes, prefetched_.id);
      case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
        if (bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
        std::vector<int> devices = accessed_by_;
        devices.resize(bytes / sizeof(int), CU_DEVICE_INVALID);
        std::memcpy(data, devices.data(), bytes);
        return CUDA_SUCCESS;
      }
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }

 private:
  static int as_device(const CUmemLocation& location) {
    switch (location.type) {
      case CU_MEM_LOCATION_TYPE_DEVICE:
        return location.id;
      case CU_MEM_LOCATION_TYPE_INVALID:
        return CU_DEVICE_INVALID;
      default:
        return CU_DEVICE_CPU;
    }
  }
  static bool host_last(int a, int b) {
    return static_cast<unsigned>(a) < static_cast<unsigned>(b);
  }
  static CUresult put(void* data, size_t bytes, int value) {
    if (bytes != sizeof value) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  }

  bool read_mostly_ = false;
  CUmemLocation preferred_{};  // CU_MEM_LOCATION_TYPE_INVALID: none
  CUmemLocation prefetched_{};
  std::vector<int> accessed_by_;  // ordinals, ascending; the host (a negative number) last
};

}  // namespace rcuda::cuda
