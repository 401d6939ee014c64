#include "softgpu/ptx/lexer.h"

#include <algorithm>
#include <array>

namespace softgpu::ptx {
namespace {

enum CharacterClass : uint8_t { kBlank = 1, kDigit = 2, kWordStart = 4, kWordPart = 8 };

constexpr std::array<uint8_t, 256> make_classes() {
  std::array<uint8_t, 256> classes{};
  for (char c : {' ', '\t', '\r', '\v', '\f'}) classes[static_cast<uint8_t>(c)] = kBlank;
  for (int c = '0'; c <= '9'; ++c) classes[c] = kDigit | kWordPart;
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = classes[c - 'a' + 'A'] = kWordStart | kWordPart;
  classes['_'] = classes['$'] = kWordStart | kWordPart;
  return classes;
}
constexpr std::array<uint8_t, 256> kClasses = make_classes();

bool has_class(char c, uint8_t wanted) { return (kClasses[static_cast<uint8_t>(c)] & wanted) != 0; }

}  // namespace

ParseError make_error(uint32_t line, std::string_view what, std::string_view near) {
  constexpr size_t kLongestQuote = 60;
  ParseError error{"PTX line " + std::to_string(line) + ": "};
  error.message.append(what);
  if (near.empty()) {
    error.message += " at the end of the text";
  } else {
    error.message += " near '";
    for (char c : near.substr(0, kLongestQuote)) error.message += c >= ' ' && c < 127 ? c : '?';
    error.message += near.size() > kLongestQuote ? "...'" : "'";
  }
  return error;
}

void Lexer::skip_blanks() {
  while (at_ < end_) {
    if (*at_ == '\n') {
      ++line_;
      ++at_;
    } else if (has_class(*at_, kBlank)) {
      ++at_;
    } else if (*at_ == '/' && end_ - at_ > 1 && at_[1] == '/') {
      at_ = std::find(at_, end_, '\n');
    } else if (*at_ == '/' && end_ - at_ > 1 && at_[1] == '*') {
      const uint32_t first_line = line_;
      at_ += 2;
      while (end_ - at_ > 1 && !(at_[0] == '*' && at_[1] == '/')) line_ += *at_++ == '\n';
      if (end_ - at_ < 2) throw make_error(first_line, "unterminated comment", "/*");
      at_ += 2;
    } else {
      return;
    }
  }
}

void Lexer::finish(Token::Kind kind, const char* begin) {
  current_ = {kind, line_, std::string_view(begin, static_cast<size_t>(at_ - begin))};
}

void Lexer::advance() {
  skip_blanks();
  const char* begin = at_;
  if (at_ == end_) return finish(Token::Kind::kEnd, begin);

  const char first = *at_++;
  if (has_class(first, kWordStart) || (first == '%' && at_ < end_ && has_class(*at_, kWordStart))) {
    while (at_ < end_ && has_class(*at_, kWordPart)) ++at_;
    return finish(Token::Kind::kWord, begin);
  }
  if (first == '.' && at_ < end_ && has_class(*at_, kWordPart)) {
    // "::" belongs to the word only if another part follows: ".shared::cta".
    while (at_ < end_) {
      if (has_class(*at_, kWordPart)) {
        ++at_;
      } else if (end_ - at_ > 2 && at_[0] == ':' && at_[1] == ':' && has_class(at_[2], kWordPart)) {
        at_ += 3;
      } else {
        break;
      }
    }
    return finish(Token::Kind::kDotWord, begin);
  }
  if (has_class(first, kDigit)) {
    const bool prefixed = first == '0' && at_ < end_ && !has_class(*at_, kDigit);
    bool decimal = !prefixed || *at_ == '.' || *at_ == 'e' || *at_ == 'E';
    while (at_ < end_) {
      if (decimal && (*at_ == 'e' || *at_ == 'E') && end_ - at_ > 1 &&
          (at_[1] == '+' || at_[1] == '-')) {
        at_ += 2;
      } else if (has_class(*at_, kWordPart) || (decimal && *at_ == '.')) {
        ++at_;
      } else {
        break;
      }
    }
    return finish(Token::Kind::kNumber, begin);
  }
  if (first == '"') {
    const uint32_t first_line = line_;
    while (at_ < end_ && *at_ != '"') {
      if (*at_ == '\\' && end_ - at_ > 1) ++at_;
      line_ += *at_++ == '\n';
    }
    if (at_ == end_) throw make_error(first_line, "unterminated string", "\"");
    ++at_;
    finish(Token::Kind::kString, begin);
    current_.line = first_line;
    return;
  }
  if (std::string_view("{}()[]<>,;:=+-*/%!~&|^?@.").find(first) == std::string_view::npos) {
    throw make_error(line_, "unexpected character", std::string_view(begin, 1));
  }
  finish(Token::Kind::kPunctuation, begin);
}

}  // namespace softgpu::ptx
