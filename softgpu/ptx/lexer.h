// Splits PTX text into tokens, one at a time, without copying.
//
// Used by one Parser on one thread. Tokens are views into the text, which must outlive them. A
// dotted word is several tokens: "ld.shared::cta.u32" is the word "ld" and the dot-words
// ".shared::cta" and ".u32". Each character of an operator is a token. Errors (an unterminated
// string or comment, an unexpected byte) are thrown as ParseError.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace softgpu::ptx {

// Thrown inside the front end only; parse() turns it into a Status.
struct ParseError {
  std::string message;
};
// Makes an error such as "PTX line 7: expected ';' near 'foo'". A long token is cut.
ParseError make_error(uint32_t line, std::string_view what, std::string_view near);

struct Token {
  enum class Kind : uint8_t { kEnd, kWord, kDotWord, kNumber, kString, kPunctuation };
  Kind kind = Kind::kEnd;
  uint32_t line = 1;
  std::string_view text;

  bool is(char c) const { return kind == Kind::kPunctuation && text[0] == c; }
  bool is_word() const { return kind == Kind::kWord; }
  bool is_dot_word() const { return kind == Kind::kDotWord; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {
    advance();
  }

  const Token& peek() const { return current_; }
  Token take() {
    Token token = current_;
    advance();
    return token;
  }
  void advance();
  // Whether the current token follows `previous` without a space between them.
  bool touches(const Token& previous) const {
    return current_.text.data() == previous.text.data() + previous.text.size();
  }
  // The character directly after the current token; '\0' at the end.
  char following() const { return at_ < end_ ? *at_ : '\0'; }

 private:
  void skip_blanks();
  void finish(Token::Kind kind, const char* begin);

  const char* at_;
  const char* end_;
  uint32_t line_ = 1;
  Token current_;
};

}  // namespace softgpu::ptx
