// SOFTGPU_COPY_LOG: what the link model did, for tests of what overlaps what.
//
// A line per copy that occupied a copy engine, written when it is over:
//   <h2d|d2h|p2p> <device address> <bytes> <begin> <end>
// The address is that of the device's side (p2p: the source's), in hexadecimal; the times are those
// between which the copy was under way, in nanoseconds of CLOCK_MONOTONIC. Processes may share the
// file: each line is appended by one write. Any thread; blocks as a write to a file does. A file
// that cannot be written is one warning.
#pragma once

#include <cstddef>
#include <cstdint>

#include "softgpu/driver/device.h"

namespace softgpu::driver {

bool copies_are_logged();
void log_copy(const char* engine, uint64_t device_address, size_t bytes,
              const CopyEngine::Slot& slot);

}  // namespace softgpu::driver
