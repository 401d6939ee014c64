#include "client/process/advice_book.h"

#include <bit>

namespace rcuda::client {

// Before the number of entries grows from a power of two, removes the entries of freed memory.
cuda::ManagedAdvice& AdviceBook::of(const Allocation& allocation) {
  if (std::has_single_bit(advices_.size()) && !advices_.contains(allocation.base)) {
    std::erase_if(advices_, [this](const auto& entry) {
      const auto found = memory_.find(entry.first);
      return !found || found->base != entry.first || found->buffer_id != entry.second.buffer_id;
    });
  }
  Advice& advice = advices_[allocation.base];
  if (advice.buffer_id != allocation.buffer_id) {
    advice = {};
    advice.buffer_id = allocation.buffer_id;
  }
  return advice.given;
}

}  // namespace rcuda::client
