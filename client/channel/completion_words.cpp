#include "client/channel/completion_words.h"

#include <chrono>
#include <thread>

namespace rcuda::client {

CompletionWords::CompletionWords(uint32_t count) {
  free_.reserve(count);
  for (uint32_t i = count; i-- > 0;) free_.push_back({i, 0});
}

Word CompletionWords::acquire() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const Word word = free_.back();
        free_.pop_back();
        return word;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

std::optional<Word> CompletionWords::acquire_spare() {
  constexpr size_t kForWaits = 1024;
  std::lock_guard lock(mutex_);
  if (free_.size() <= kForWaits) return std::nullopt;
  const Word word = free_.back();
  free_.pop_back();
  return word;
}

void CompletionWords::release(Word word) {
  std::lock_guard lock(mutex_);
  free_.push_back(word);
}

}  // namespace rcuda::client
