#include "server/executor/answers/completion_words.h"

#include <span>

namespace rcuda::server {

void CompletionWords::signal(WordSignal signal, CUresult result, transport::Wake wake) {
  if (signal.sequence == 0) return;
  const uint64_t value = wire::CompletionWord::make(signal.sequence, static_cast<uint32_t>(result));
  MutexLock lock(mutex_);
  if (signal.sequence < latest_[signal.word]) return;
  latest_[signal.word] = signal.sequence;
  (void)link_.put(wire::ClientWindow::kCompletionWords + 8ull * signal.word,
                  std::as_bytes(std::span(&value, 1)), {}, wake);
}

bool CompletionWords::has(WordSignal signal) {
  MutexLock lock(mutex_);
  return latest_[signal.word] >= signal.sequence;
}

}  // namespace rcuda::server
