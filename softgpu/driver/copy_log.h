// SOFTGPU_COPY_LOG: logs the copies of the link model, for tests of which copies overlap.
//
// Each copy that occupied a copy engine gets a line when it has ended:
//
//   <h2d|d2h|p2p> <device address> <bytes> <begin> <end>
//
// The address is that of the device memory (p2p: of the source), in hexadecimal. The times, in
// nanoseconds of CLOCK_MONOTONIC, are the copy's begin and end. Processes may share the file: each
// line is appended by one write. Any thread; blocks as long as a write to a file does. A file that
// cannot be opened causes one warning.
#pragma once

#include <cstddef>
#include <cstdint>

#include "softgpu/driver/device.h"

namespace softgpu::driver {

bool copies_are_logged();
void log_copy(const char* engine, uint64_t device_address, size_t bytes,
              const CopyEngine::Slot& slot);

}  // namespace softgpu::driver
