// The completion words of a session: 64-bit words in this process's memory. The worker writes a
// word when a stream has reached the command that names the word, or when an event or a copy is
// done.
//
// Each request that uses a word raises the word's sequence, and the next owner continues the
// sequence. So a late write of the worker cannot be mistaken for the answer to a newer request.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/channel.h"

namespace rcuda::client {

using wire::Word;  // index of a word, and the sequence of its latest request

class CompletionWords {
 public:
  explicit CompletionWords(uint32_t count);

  // Takes a word for a wait; the caller releases it afterwards. Prefers the words with the lowest
  // indices, because only these have a GPU-written word (TimelineHost::word_reached()). Blocks
  // while all words are taken, which is unlikely.
  Word acquire();
  // Takes a word that the worker may write late or never. Returns nullopt if only words reserved
  // for acquire() are free.
  std::optional<Word> acquire_spare();
  void release(Word word);

 private:
  Mutex mutex_;
  std::vector<Word> for_waits_ RCUDA_GUARDED_BY(mutex_);
  std::vector<Word> spare_ RCUDA_GUARDED_BY(mutex_);
};

// A word for one wait, with the sequence of its request. The destructor releases the word, even if
// no command was sent with the sequence: the next owner raises the sequence again.
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
