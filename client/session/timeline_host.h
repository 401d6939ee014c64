// TimelineHost: the functions of a session that its timelines use. Threads: any.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "client/session/completion_words.h"

namespace rcuda::client {

class Timeline;

class TimelineHost {
 public:
  virtual CompletionWords& words() = 0;
  // Whether the word has reached its sequence: the worker has written the word, or the GPU has
  // written the GPU-written word that belongs to it. Sets *result to the word's result.
  virtual bool word_reached(const Word& word, CUresult* result) const = 0;
  // Blocks until the word has reached its sequence. Returns the word's result, or kSessionLost.
  // `of`: the timeline of the word's command; may be null. Also prints the output of kernels up to
  // that point, unless `of` is a timeline of wire::kFetchStream: the thread that waits for a fetch
  // may hold the stdout lock, and kernels that print do not run in this stream.
  virtual CUresult wait_word(const Word& word, const Timeline* of = nullptr) = 0;
  // Sends a mark: a command that raises the word when the timeline's queue reaches the mark.
  // Returns the position of the mark.
  virtual uint64_t post_mark(Timeline& timeline, const Word& word) = 0;
  // Adds 1 to the number of the program's finished waits. Called before the awaited work is
  // recorded as done.
  virtual void note_wait() = 0;
  // Whether the session is lost or has ended.
  virtual bool lost() = 0;

 protected:
  ~TimelineHost() = default;
};

}  // namespace rcuda::client
