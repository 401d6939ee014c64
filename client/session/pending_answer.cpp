#include "client/session/pending_answer.h"

#include "client/session/news.h"

namespace rcuda::client {

void PendingAnswer::set(const Word& word, uint64_t news) {
  word_.store(word.index, std::memory_order_relaxed);
  sequence_.store(word.sequence, std::memory_order_relaxed);
  news_.store(news, std::memory_order_release);  // pairs with holds()
}

bool PendingAnswer::holds(const TimelineHost& host) const {
  const uint64_t news = news_.load(std::memory_order_acquire);
  // Compared before the word is read: news that arrives later does not concern this caller.
  if (news != News::count()) return false;
  CUresult ignored;
  const Word word{word_.load(std::memory_order_relaxed), sequence_.load(std::memory_order_relaxed)};
  return !host.word_reached(word, &ignored);
}

}  // namespace rcuda::client
