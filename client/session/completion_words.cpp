#include "client/session/completion_words.h"

#include <chrono>
#include <thread>

#include "common/base/cancellation_off.h"

namespace rcuda::client {
namespace {

constexpr uint32_t kForWaits = 1024;

std::optional<Word> take(std::vector<Word>& words) {
  if (words.empty()) return std::nullopt;
  const Word word = words.back();
  words.pop_back();
  return word;
}

}  // namespace

CompletionWords::CompletionWords(uint32_t count) {
  for_waits_.reserve(kForWaits);
  spare_.reserve(count);
  for (uint32_t i = count; i-- > 0;) release({i, 0});
}

Word CompletionWords::acquire() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (const auto word = take(for_waits_)) return *word;
      if (const auto word = take(spare_)) return *word;
    }
    const CancellationOff off;  // sleep_for() can be cancelled; the caller's wait must finish
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

std::optional<Word> CompletionWords::acquire_spare() {
  MutexLock lock(mutex_);
  return take(spare_);
}

void CompletionWords::release(Word word) {
  MutexLock lock(mutex_);
  (word.index < kForWaits ? for_waits_ : spare_).push_back(word);
}

}  // namespace rcuda::client
