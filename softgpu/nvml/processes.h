// The memory of a device that this process and its children (a server's workers) use.
//
// Any thread. Blocking: reads of /proc. Errors: a process that cannot be read, or has ended
// meanwhile, is omitted.
#pragma once

#include <cstdint>
#include <map>

namespace softgpu::nvml {

// Bytes by process id; processes without memory on the device are omitted.
std::map<uint32_t, uint64_t> memory_of_processes(unsigned ordinal);

}  // namespace softgpu::nvml
