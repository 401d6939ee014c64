#include "softgpu/ptx/parser.h"

#include <charconv>
#include <limits>
#include <new>
#include <utility>

#include "softgpu/ptx/parser_internal.h"

namespace softgpu::ptx {

bool Parser::accept(char c) {
  if (!lexer_.peek().is(c)) return false;
  lexer_.advance();
  return true;
}

void Parser::expect(char c) {
  if (!accept(c)) fail(std::string("expected '") + c + "'");
}

bool Parser::at_directive(std::string_view name) const {
  return lexer_.peek().is_dot_word() && lexer_.peek().text == name;
}

bool Parser::accept_directive(std::string_view name) {
  if (!at_directive(name)) return false;
  lexer_.advance();
  return true;
}

std::string_view Parser::expect_word(std::string_view what) {
  if (!lexer_.peek().is_word()) fail(what);
  return lexer_.take().text;
}

uint64_t Parser::expect_integer(uint64_t limit, std::string_view what) {
  Constant value;
  const Token& token = lexer_.peek();
  if (token.kind != Token::Kind::kNumber || !parse_number(token.text, &value) || value.is_float() ||
      value.bits > limit) {
    fail(what);
  }
  lexer_.advance();
  return value.bits;
}

void Parser::skip_to_semicolon() {
  while (!accept(';')) {
    if (lexer_.peek().kind == Token::Kind::kEnd) fail("expected ';'");
    lexer_.advance();
  }
}

void Parser::run() {
  version_directive();
  while (lexer_.peek().kind != Token::Kind::kEnd) module_item();
  resolve_aliases();
}

void Parser::module_item() {
  if (accept(';')) return;
  if (accept_directive(".target")) return target_directive();
  if (accept_directive(".address_size")) {
    if (expect_integer(64, "expected an address size") != 64)
      fail("only .address_size 64 is supported");
    return;
  }
  if (accept_directive(".file")) return file_directive();
  if (accept_directive(".section")) return section_directive();
  if (accept_directive(".pragma")) return skip_to_semicolon();
  if (accept_directive(".alias")) return alias_directive();

  Linkage linkage = Linkage::kInternal;
  if (accept_directive(".visible")) {
    linkage = Linkage::kVisible;
  } else if (accept_directive(".extern")) {
    linkage = Linkage::kExtern;
  } else if (accept_directive(".weak")) {
    linkage = Linkage::kWeak;
  } else if (accept_directive(".common")) {
    linkage = Linkage::kCommon;
  }
  if (accept_directive(".entry")) return function(true, linkage);
  if (accept_directive(".func")) return function(false, linkage);
  if (accept_directive(".global")) return module_variables(Space::kGlobal, linkage);
  if (accept_directive(".const")) return module_variables(Space::kConst, linkage);
  if (accept_directive(".shared")) return module_variables(Space::kShared, linkage);
  fail("expected a module-level directive");
}

void Parser::version_directive() {
  if (!accept_directive(".version")) fail("expected .version");
  const std::string_view text = lexer_.peek().text;
  const char* end = text.data() + text.size();
  uint32_t number = 0;
  const auto major = std::from_chars(text.data(), end, number);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') fail("expected a version");
  const auto minor = std::from_chars(major.ptr + 1, end, number);
  if (minor.ec != std::errc() || minor.ptr != end) fail("expected a version");
  lexer_.advance();
}

void Parser::target_directive() {
  do {
    const Token token = lexer_.peek();
    const std::string_view name = expect_word("expected a target");
    if (name.starts_with("sm_") || name.starts_with("compute_")) {
      // After the number: 'a' (this architecture only) or 'f' (its family).
      const size_t digits = name.find('_') + 1;
      const auto [stop, error] =
          std::from_chars(name.data() + digits, name.data() + name.size(), module_->target_sm);
      if (error != std::errc()) fail_at(token, "expected a target such as sm_75");
    }
  } while (accept(','));
}

void Parser::section_directive() {
  if (!lexer_.peek().is_dot_word() && !lexer_.peek().is_word()) fail("expected a section name");
  lexer_.advance();
  expect('{');
  while (!accept('}')) {
    if (lexer_.peek().kind == Token::Kind::kEnd) fail("expected '}'");
    lexer_.advance();
  }
}

void Parser::file_directive() {
  expect_integer(std::numeric_limits<uint32_t>::max(), "expected a file number");
  if (lexer_.peek().kind != Token::Kind::kString) fail("expected a file name");
  lexer_.advance();
  while (accept(',')) {  // time stamp, size
    expect_integer(std::numeric_limits<uint64_t>::max(), "expected a number");
  }
}

void Parser::alias_directive() {
  const Token name = lexer_.peek();
  expect_word("expected a function name");
  expect(',');
  aliases_.push_back({name, expect_word("expected a function name")});
  expect(';');
}

void Parser::resolve_aliases() {
  // The most instructions of all copies together. A copy is as large as its target, and a target
  // may have many aliases, so without this limit hostile text could take much memory.
  constexpr size_t kCopiedInstructions = 4u << 20;
  size_t copied = 0;
  for (const Alias& alias : aliases_) {
    const uint32_t* target = function_index_.find(alias.target);
    if (target == nullptr || !module_->functions[*target - 1].is_defined) {
      fail_at(alias.name, "the target of the alias is not defined");
    }
    Function copy = module_->functions[*target - 1];
    copied += copy.code.size() + 1;
    if (copied > kCopiedInstructions) fail_at(alias.name, "too many aliases");
    copy.name = alias.name.text;
    if (const uint32_t* declared = function_index_.find(copy.name)) {
      copy.linkage = module_->functions[*declared - 1].linkage;
    }
    add_function(std::move(copy), alias.name);
  }
}

rcuda::Result<std::unique_ptr<Module>> parse(std::string text) {
  try {
    auto module = std::make_unique<Module>();
    module->text = std::move(text);
    if (const size_t nul = module->text.find('\0'); nul != std::string::npos) {
      module->text.resize(nul);
    }
    // Indices of instructions, registers and variables are 32 bits wide.
    if (module->text.size() > std::numeric_limits<uint32_t>::max()) {
      return rcuda::Status(rcuda::Code::kInvalidArgument, "the PTX text has 4 GiB or more");
    }
    Parser(module.get()).run();
    return module;
  } catch (const ParseError& error) {
    return rcuda::Status(rcuda::Code::kInvalidArgument, error.message);
  } catch (const std::bad_alloc&) {
    return rcuda::Status(rcuda::Code::kOutOfMemory, "no memory to parse PTX");
  }
}

}  // namespace softgpu::ptx
