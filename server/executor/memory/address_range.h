// A range of this process's addresses.
#pragma once

#include <cstdint>

namespace rcuda::server {

struct AddressRange {
  uint64_t begin = 0, end = 0;
};

}  // namespace rcuda::server
