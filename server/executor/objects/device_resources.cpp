#include "server/executor/objects/device_resources.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rcuda::server {

uint32_t DeviceResources::number_of(const CUdevResource& given) {
  uint32_t number;
  std::memcpy(&number, given._internal_padding, sizeof number);
  return number;
}

CUresult DeviceResources::keep(CUdevResource* resource) {
  if (resource->type == CU_DEV_RESOURCE_TYPE_INVALID) {
    *resource = {};
    return CUDA_SUCCESS;
  }
  const auto known = std::find_if(
      resources_.begin(), resources_.end(),
      [&](const CUdevResource& kept) { return std::memcmp(&kept, resource, sizeof kept) == 0; });
  const auto number = static_cast<uint32_t>(known - resources_.begin());
  if (known == resources_.end()) {
    if (resources_.size() == kMost) return CUDA_ERROR_OUT_OF_MEMORY;
    resources_.push_back(*resource);
  }
  std::memset(resource->_internal_padding, 0, sizeof resource->_internal_padding);
  std::memcpy(resource->_internal_padding, &number, sizeof number);
  return CUDA_SUCCESS;
}

CUresult DeviceResources::find(const CUdevResource& given, CUdevResource* resource) const {
  const uint32_t number = number_of(given);
  if (number >= resources_.size() || resources_[number].type != given.type ||
      std::memcmp(&resources_[number].sm, &given.sm, sizeof given.sm) != 0) {
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  }
  *resource = resources_[number];
  return CUDA_SUCCESS;
}

unsigned DeviceResources::keep_descriptor(std::vector<uint32_t> of, CUdevResourceDesc descriptor) {
  if (descriptors_.size() == kMost) return 0;
  descriptors_.push_back(descriptor);
  const auto number = static_cast<unsigned>(descriptors_.size());
  descriptors_of_.emplace(std::move(of), number);
  return number;
}

unsigned DeviceResources::find_descriptor(const std::vector<uint32_t>& of) const {
  const auto found = descriptors_of_.find(of);
  return found == descriptors_of_.end() ? 0 : found->second;
}

bool DeviceResources::descriptor(unsigned number, CUdevResourceDesc* descriptor) const {
  if (number > descriptors_.size()) return false;
  *descriptor = number == 0 ? nullptr : descriptors_[number - 1];
  return true;
}

}  // namespace rcuda::server
