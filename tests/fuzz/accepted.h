// The check of fuzzers whose target returns a Result: a refusal must give a reason.
#pragma once

#include <cstdlib>

#include "common/base/status.h"

namespace rcuda::fuzz {

inline void must(bool holds) {
  if (!holds) std::abort();
}

// A refusal must give a reason.
template <typename T>
bool accepted(const Result<T>& result) {
  must(result.ok() || !result.status().context().empty());
  return result.ok();
}

}  // namespace rcuda::fuzz
