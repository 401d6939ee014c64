#include "server/executor/peers/peer_memory.h"

namespace rcuda::server {

bool PeerMemory::is_device_memory(uint64_t address) const {
  unsigned type = 0;
  return driver_.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
             CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

Status PeerMemory::check(const p2p::Shape& memory) {
  RCUDA_RETURN_IF_ERROR(memory.check());
  if (memory.bytes() == 0) return {};
  const uint64_t last = memory.address + memory.extent_bytes() - 1;
  // The driver's query takes longer while other threads query the state of their copies. So memory
  // that is copied repeatedly is checked again only after other work, which may have freed it.
  if (at_ != work_.without_holds()) {
    at_ = work_.without_holds();
    checked_ = {};
    next_ = 0;
  }
  for (const Range& known : checked_) {
    if (known.first <= memory.address && last <= known.last) return {};
  }
  if (!is_device_memory(memory.address) || !is_device_memory(last)) {
    return {Code::kInvalidArgument, "a peer copy has an address outside of device memory"};
  }
  checked_[next_++ % checked_.size()] = {memory.address, last};
  return {};
}

}  // namespace rcuda::server
