// Deterministic mutations of an input, for tests that repeat a fuzzer's work under any compiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

namespace rcuda::fuzz {

// Gives the same sequence on every machine. Make a new Mutator per (input, seed).
class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    for (uint32_t i = 0, count = 1 + pick(4); i < count && !text.empty(); ++i) change(&text);
    return text;
  }

 private:
  // uniform_int_distribution differs between libraries; the bias of % does not matter here.
  uint32_t pick(size_t limit) { return static_cast<uint32_t>(random_() % limit); }

  void change(std::string* text) {
    const size_t at = pick(text->size());
    const size_t length = std::min<size_t>(1 + pick(16), text->size() - at);
    switch (pick(6)) {
      case 0:
        (*text)[at] ^= static_cast<char>(1 << pick(8));
        break;
      case 1:
        (*text)[at] = static_cast<char>(random_());
        break;
      case 2:
        text->erase(at, length);
        break;
      case 3:
        text->insert(pick(text->size()), text->substr(at, length));
        break;
      case 4:
        text->replace(at, length, text->substr(pick(text->size()), length));
        break;
      case 5: {
        static constexpr uint64_t kExtremes[] = {0,          1,          0x7f,       0xff, 0xffff,
                                                 0x7fffffff, 0xffffffff, ~0ull >> 1, ~0ull};
        const uint64_t value = kExtremes[pick(std::size(kExtremes))];
        for (size_t i = 0; i < std::min<size_t>(length, 8); ++i) {
          (*text)[at + i] = static_cast<char>(value >> (8 * i));
        }
        break;
      }
    }
  }

  std::mt19937 random_;
};

}  // namespace rcuda::fuzz
