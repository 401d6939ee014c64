// CompletionWords: writes the completion words in the client's window, which report the progress of
// work. The value of a word only grows, even if several threads signal it.
//
// Threads: any. Blocking: as Link::put(). Errors: none; the session loop notices a broken Link.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"

namespace rcuda::server {

// A completion word and the sequence to write into it. Sequence 0: nothing to signal.
struct WordSignal {
  uint32_t word = 0;
  uint64_t sequence = 0;
};

class CompletionWords {
 public:
  explicit CompletionWords(transport::Link& link) : link_(link) {}

  // Drops a signal that is older than the word's value: the word may have a new owner while a
  // destroyed stream still has to signal it. The word must exist.
  void signal(WordSignal signal, CUresult result, transport::Wake wake);
  // Whether the word has this sequence or a later one. The word must exist.
  bool has(WordSignal signal);

 private:
  transport::Link& link_;
  // Held across the put, so that two threads write a word in the order of its values.
  Mutex mutex_;
  std::vector<uint64_t> latest_ RCUDA_GUARDED_BY(mutex_) =
      std::vector<uint64_t>(wire::ClientWindow::kCompletionCount);
};

}  // namespace rcuda::server
