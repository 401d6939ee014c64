// The addresses that this process uses.
//
// Threads: any; another thread may change the mappings while they are read. Blocking: reads one
// file of /proc, a fraction of a millisecond. Errors: the file cannot be opened.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"

namespace rcuda {

struct AddressRange {
  uint64_t begin = 0, end = 0;
};

// Returns every mapping, sorted by `begin`. The range of the main thread's stack includes the
// addresses below the stack into which the stack may grow, so it may overlap other ranges.
Result<std::vector<AddressRange>> own_mappings();

void sort_by_begin(std::vector<AddressRange>* ranges);

// Returns the parts of [from, to) that no range of `used` covers. `used` is sorted by `begin`; its
// ranges may overlap.
std::vector<AddressRange> gaps(const std::vector<AddressRange>& used, uint64_t from, uint64_t to);

}  // namespace rcuda
