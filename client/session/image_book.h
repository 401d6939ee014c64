// ImageBook: what a session's client knows of the images that the worker has.
//
// Threads: the caller's lock. Nothing blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>

namespace rcuda::client {

class ImageBook {
 public:
  using Hash = std::array<uint8_t, 32>;

  // Whether the worker has been asked for this image. Since then it has it.
  bool knows(const Hash& hash) const { return known_.contains(hash); }
  // Whether the worker is likely to lack an image that is not known: it lacked the last one, or
  // there was none yet. A program that compiles its kernels, or whose server keeps no images, has
  // images that are lacked, one after the other.
  bool expects_lack() const { return lacked_last_; }
  void note(const Hash& hash, bool lacked) {
    constexpr size_t kMost = 10'000;  // what is forgotten may be sent in vain
    if (known_.size() >= kMost) known_.clear();
    if (known_.insert(hash).second) lacked_last_ = lacked;
  }

 private:
  std::set<Hash> known_;
  bool lacked_last_ = true;
};

}  // namespace rcuda::client
