// The answer of the table INTEGRITY_CHECK, with which NVIDIA's runtime checks that the driver is
// NVIDIA's. The ZLUDA project has published the algorithm. The results equal those of driver 580
// bit for bit. Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/interop/export_tables.h"

namespace rcuda::interop {

struct IntegrityQuestion {
  uint32_t driver_version = 0;
  uint32_t version = 0;  // the runtime's version, plus 0, 1 or 2
  uint32_t process_id = 0;
  uint32_t thread = 0;  // low word of pthread_self()
  uint64_t runtime_table = 0, integrity_table = 0, integrity_function = 0;  // their addresses
  uint64_t seconds = 0;
};

std::array<uint8_t, 16> integrity_answer(const IntegrityQuestion& question,
                                         std::span<const DeviceIdentity> devices);

}  // namespace rcuda::interop
