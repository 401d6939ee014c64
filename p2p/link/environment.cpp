#include "p2p/link/environment.h"

#include "common/base/log.h"

namespace rcuda::p2p {

Result<DeviceAddress> Environment::scratch(int device) {
  DeviceBuffer& buffer = scratch_[static_cast<size_t>(device)].buffer;
  if (buffer.bytes() == 0) {
    RCUDA_ASSIGN_OR_RETURN(buffer, DeviceBuffer::create(ops, device, kScratchBytes));
  }
  return buffer.address();
}

const std::optional<ExportedMemory>& Environment::probe_memory(int device) {
  Scratch& own = scratch_[static_cast<size_t>(device)];
  if (!options.planner.may_map() || std::exchange(own.tried, true)) return own.exported;
  const Result<DeviceAddress> memory = scratch(device);
  if (!memory) return own.exported;
  const Result<ExportedMemory> exported = ops.export_memory(device, *memory);
  if (exported) {
    own.exported = *exported;
  } else {
    RCUDA_DEBUG("memory of device %d cannot be exported, so peers on this host cannot map it: %s",
                device, exported.status().message().c_str());
    own.buffer = {};
  }
  return own.exported;
}

}  // namespace rcuda::p2p
