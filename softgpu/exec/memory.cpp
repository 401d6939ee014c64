#include "softgpu/exec/memory.h"

#include <algorithm>

namespace softgpu::exec {

bool Memory::find(uint64_t begin, uint64_t end, bool write) {
  const uint64_t generation = map_->generation();
  if (generation != generation_) {
    generation_ = generation;
    recent_[0] = recent_[1] = Range{};
    std::fill(std::begin(readable_), std::end(readable_), Range{});
    std::fill(std::begin(writable_), std::end(writable_), Range{});
  }
  if (begin > end) return false;
  Range* remembered = write ? writable_ : readable_;
  for (uint32_t k = 0; k < kRemembered; ++k) {
    if (begin >= remembered[k].begin && end <= remembered[k].end) {
      recent_[write ? 1 : 0] = remembered[k];
      return true;
    }
  }
  Range range = map_->find(begin);
  if (range.end == 0 || end > range.end) return false;
  if (write) {
    if (range.access != Access::kReadWrite) return false;
    for (const Range& constant : constants_) {
      if (constant.end <= begin) {
        range.begin = std::max(range.begin, constant.end);
      } else if (constant.begin >= end) {
        range.end = std::min(range.end, constant.begin);
      } else {
        return false;
      }
    }
  }
  recent_[write ? 1 : 0] = range;
  remembered[next_[write ? 1 : 0]++ % kRemembered] = range;
  return true;
}

std::byte* host_address(Lanes& x, uint32_t lane, ptx::Space space, uint64_t address, uint32_t bytes,
                        bool write) {
  const uint64_t given = address;
  const auto fault = [&](CUresult code, const char* reason) -> std::byte* {
    x.fault_at(lane, code, given, reason);
    return nullptr;
  };
  if (space == ptx::Space::kGeneric) {
    switch (address & kWindowMask) {
      case kSharedWindow:
        space = ptx::Space::kShared;
        break;
      case kLocalWindow:
        space = ptx::Space::kLocal;
        break;
      case kParamWindow:
        space = ptx::Space::kParam;
        break;
      default:
        space = ptx::Space::kGlobal;
        break;
    }
    if (space != ptx::Space::kGlobal) address &= ~kWindowMask;
  }
  if ((address & (bytes - 1)) != 0 && (bytes & (bytes - 1)) == 0) {
    return fault(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address");
  }
  switch (space) {
    case ptx::Space::kShared:
      if (!inside(address, bytes, x.shared_bytes)) {
        return fault(CUDA_ERROR_ILLEGAL_ADDRESS, "address outside the block's shared memory");
      }
      return x.shared + address;
    case ptx::Space::kLocal:
      if (!inside(address, bytes, x.local_limit)) {
        return fault(CUDA_ERROR_ILLEGAL_ADDRESS, "address outside the thread's local memory");
      }
      return x.local + static_cast<uint64_t>(lane) * x.local_stride + address;
    case ptx::Space::kParam:
      if (write || !inside(address, bytes, x.parameter_bytes)) {
        return fault(CUDA_ERROR_ILLEGAL_ADDRESS, write ? "write to the kernel's parameters"
                                                       : "address outside the kernel's parameters");
      }
      return const_cast<std::byte*>(x.parameters) + address;
    default:
      if (!x.memory->covers(address, address + bytes, write)) {
        return fault(CUDA_ERROR_ILLEGAL_ADDRESS, x.memory->covers(address, address + bytes, false)
                                                     ? "write to read-only memory"
                                                     : "illegal address");
      }
      return reinterpret_cast<std::byte*>(address);
  }
}

bool read_string(Lanes& x, uint32_t lane, uint64_t address, size_t limit, std::string* text) {
  text->clear();
  for (; text->size() < limit; ++address) {
    const std::byte* byte = host_address(x, lane, ptx::Space::kGeneric, address, 1, false);
    if (byte == nullptr) return false;
    if (*byte == std::byte{0}) break;
    text->push_back(static_cast<char>(*byte));
  }
  return true;
}

}  // namespace softgpu::exec
