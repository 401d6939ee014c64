// ImageBook: the images that a session's worker is known to have.
//
// Threads: the caller holds Session::image_mutex(). Nothing blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

namespace rcuda::client {

class ImageBook {
 public:
  using Hash = std::array<uint8_t, 32>;

  // Whether the client has queried this image. The worker had it, or received it afterwards.
  bool knows(const Hash& hash) const { return known_.contains(hash); }
  // Whether the worker probably lacks the next unknown image. True if it lacked the last queried
  // image, or if no image was queried yet. If a program compiles its kernels, or its server keeps
  // no images, the worker lacks one image after the other.
  bool expects_lack() const { return lacked_last_; }
  void note(const Hash& hash, bool lacked) {
    constexpr size_t kMost = 10'000;  // a forgotten image may be sent again needlessly
    if (known_.size() >= kMost) known_.clear();
    if (known_.insert(hash).second) lacked_last_ = lacked;
  }

 private:
  std::set<Hash> known_;
  bool lacked_last_ = true;
};

}  // namespace rcuda::client
