// The hints that the application gave for managed memory (cuMemAdvise, prefetches).
//
// Threads: the caller serialises the calls. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "client/process/registry.h"
#include "common/cuda/managed_advice.h"

namespace rcuda::client {

class AdviceBook {
 public:
  // `memory` outlives this object.
  explicit AdviceBook(const Registry& memory) : memory_(memory) {}

  // Returns the advice for a live allocation. New memory starts without advice, even at the address
  // of freed memory. The reference is valid until the next call.
  cuda::ManagedAdvice& of(const Allocation& allocation);

  // Returns the number of entries. Entries of freed memory count until they are removed: at the
  // latest before the number exceeds the next power of two.
  size_t size() const { return advices_.size(); }

 private:
  struct Advice {
    uint64_t buffer_id = 0;
    cuda::ManagedAdvice given;
  };
  const Registry& memory_;
  std::map<uint64_t, Advice> advices_;  // by the allocation's base
};

}  // namespace rcuda::client
