// The completion words of a session: 64-bit words in this process's memory. The worker writes one
// when a stream, an event or a copy has reached a given point.
//
// Each request that uses a word raises the word's sequence, and the sequence continues when the
// word gets another owner. So a late write of the worker can never be mistaken for the answer to a
// newer request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/channel.h"

namespace rcuda::client {

using wire::Word;  // with the sequence of its latest request

class CompletionWords {
 public:
  explicit CompletionWords(uint32_t count);

  // Takes a word for a wait; the caller releases it afterwards. The same few words with the lowest
  // indices serve again and again: the GPU writes marks for those (TimelineHost::word_reached()).
  // In the unlikely case that all words are taken, it blocks until one is free.
  Word acquire();
  // Takes a word for something that may never happen, or for long. Returns nullopt if all words
  // that are not kept for acquire() are taken.
  std::optional<Word> acquire_spare();
  void release(Word word);

 private:
  Mutex mutex_;
  std::vector<Word> for_waits_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Word> spare_ RCUDA_GUARDED_BY(mutex_);
};

// A word for one wait, with the sequence of its request. The destructor gives it back, also if no
// command carries the sequence: the next owner raises it again.
class WaitWord {
 public:
  explicit WaitWord(CompletionWords& words) : words_(words), word_(words.acquire()) {
    ++word_.sequence;
  }
  ~WaitWord() { words_.release(word_); }
  WaitWord(const WaitWord&) = delete;
  WaitWord& operator=(const WaitWord&) = delete;
  const Word& get() const { return word_; }

 private:
  CompletionWords& words_;
  Word word_;
};

}  // namespace rcuda::client
