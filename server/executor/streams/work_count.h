// WorkCount: counts the commands that may have queued work on a GPU or freed memory. While the
// count stays the same, facts that the worker has found out stay valid: that a stream is idle, or
// that an address is device memory. Executor thread only.
#pragma once

#include <cstdint>

namespace rcuda::server {

class WorkCount {
 public:
  // To be called when work may have been queued in some stream, or memory may have been freed.
  void note() { ++work_; }
  // To be called before a peer copy that holds a stream is queued. Returns whether the previously
  // counted work was a peer copy that holds the same stream.
  bool note_hold(uint64_t stream_key) {
    const bool follows = held_at_ == work_ && held_key_ == stream_key;
    held_at_ = ++work_;
    held_key_ = stream_key;
    ++holds_;
    return follows;
  }
  uint64_t all() const { return work_; }
  // The count without peer copies that hold a stream.
  uint64_t without_holds() const { return work_ - holds_; }

 private:
  uint64_t work_ = 1;
  uint64_t held_at_ = 0;  // work_ at the latest peer copy that holds a stream
  uint64_t held_key_ = 0;
  uint64_t holds_ = 0;
};

}  // namespace rcuda::server
