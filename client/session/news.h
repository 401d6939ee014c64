// News: counts how often the client has learned that work is done. The count grows before any
// caller sees the new state. After it has grown, work that was unfinished at an earlier query may
// be done too, although its own word has not arrived yet. The process has one count, because
// streams of different servers may wait for each other. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

namespace rcuda::client {

class News {
 public:
  static uint64_t count() { return count_.load(std::memory_order_acquire); }
  static void add() { count_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  static inline std::atomic<uint64_t> count_{1};
};

}  // namespace rcuda::client
