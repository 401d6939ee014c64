// Splits a PTX text into words, and finds the sizes of its types. Private to this folder.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace rcuda::image {

inline bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.' ||
         c == '%';
}

// Splits a text into words (names, directives, numbers, quoted texts) and single characters,
// without comments.
class Words {
 public:
  explicit Words(std::string_view text) : text_(text) {}

  // Returns the next word, empty at the end of the text.
  std::string_view next() {
    skip_blank();
    const size_t start = at_;
    if (at_ == text_.size()) return {};
    if (text_[at_] == '"') {
      at_ = std::min(text_.find('"', at_ + 1), text_.size() - 1) + 1;
    } else if (is_word(text_[at_])) {
      // A directive ends where the next directive begins: ".param.u64".
      for (++at_; at_ < text_.size() && is_word(text_[at_]) && text_[at_] != '.';) ++at_;
    } else {
      ++at_;
    }
    return text_.substr(start, at_ - start);
  }

 private:
  void skip_blank() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

// ".u64" gives 8, ".f16x2" 4; a word that is not a type gives 0.
inline uint64_t bytes_of_type(std::string_view word) {
  if (word == ".texref" || word == ".samplerref" || word == ".surfref") return 8;
  if (word.size() < 3 || word[0] != '.' ||
      std::string_view("busf").find(word[1]) == std::string_view::npos) {
    return 0;
  }
  const bool is_pair = word.ends_with("x2");
  if (is_pair) word.remove_suffix(2);
  uint64_t bits = 0;
  const char* const all = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data() + 2, all, bits);
  if (error != std::errc() || end != all || bits < 8 || bits > 128 || bits % 8 != 0) return 0;
  return bits / 8 * (is_pair ? 2 : 1);
}

}  // namespace rcuda::image
