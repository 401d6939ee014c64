#include <algorithm>
#include <iterator>
#include <utility>

#include "softgpu/ptx/parser_internal.h"

namespace softgpu::ptx {
namespace {

constexpr int kDeepestExpression = 32;

// Special registers, sorted, without '%' and component ("ctaid" for %ctaid.x). A name with '%' that
// is neither declared nor listed here is a typing error. exec/ decides whether a special register
// is supported.
constexpr std::string_view kSpecialRegisters[] = {
    "aggr_smem_size",
    "clock",
    "clock64",
    "clock_hi",
    "cluster_ctaid",
    "cluster_ctarank",
    "cluster_nctaid",
    "cluster_nctarank",
    "clusterid",
    "ctaid",
    "current_graph_exec",
    "dynamic_smem_size",
    "globaltimer",
    "globaltimer_hi",
    "globaltimer_lo",
    "gridid",
    "is_explicit_cluster",
    "laneid",
    "lanemask_eq",
    "lanemask_ge",
    "lanemask_gt",
    "lanemask_le",
    "lanemask_lt",
    "nclusterid",
    "nctaid",
    "nsmid",
    "ntid",
    "nwarpid",
    "smid",
    "tid",
    "total_smem_size",
    "warpid",
};
static_assert(std::is_sorted(std::begin(kSpecialRegisters), std::end(kSpecialRegisters)));
// Families of names that continue with a number or word.
constexpr std::string_view kSpecialPrefixes[] = {"envreg", "pm", "reserved_smem_offset_"};

bool is_special(std::string_view word) {
  if (word == "WARP_SZ") return true;
  if (word[0] != '%') return false;
  word.remove_prefix(1);
  return std::binary_search(std::begin(kSpecialRegisters), std::end(kSpecialRegisters), word) ||
         std::any_of(std::begin(kSpecialPrefixes), std::end(kSpecialPrefixes),
                     [word](std::string_view prefix) { return word.starts_with(prefix); });
}

}  // namespace

Guard Parser::guard() {
  expect('@');
  Guard result;
  result.negated = accept('!');
  const Token at = lexer_.peek();
  const Name name = resolve(expect_word("expected a predicate"));
  if (name.kind != Name::Kind::kRegister || name.type != Type::kPred) {
    fail_at(at, "expected a predicate");
  }
  result.reg = name.index;
  return result;
}

void Parser::instruction(const Token& opcode, std::optional<Guard> guard) {
  Instruction instruction;
  instruction.opcode = opcode.text;
  instruction.guard = guard;
  instruction.line = opcode.line;
  while (lexer_.peek().is_dot_word()) {
    instruction.modifiers.push_back(lexer_.take().text.substr(1));
  }

  std::vector<Operand>& operands = instruction.operands;
  if (opcode.text == "call") {
    call_operands(&operands);
  } else if (opcode.text == "bra") {
    branch_target(Label::Kind::kPosition, &operands);
  } else if (opcode.text == "brx") {
    operand(&operands.emplace_back());
    expect(',');
    branch_target(Label::Kind::kBranchTable, &operands);
  } else if (!lexer_.peek().is(';')) {
    operands.reserve(4);
    do {
      operand(&operands.emplace_back());
    } while (accept(','));
  }
  expect(';');
  function_->code.push_back(std::move(instruction));
}

// call [(returns),] target [, (arguments)] [, prototype];
void Parser::call_operands(std::vector<Operand>* operands) {
  if (accept('(')) {
    operand_list(')', Operand::Kind::kList, &operands->emplace_back());
    expect(',');
  }
  if (!lexer_.peek().is_word()) fail("expected a function");
  word_operand(&operands->emplace_back());
  if (!accept(',')) return;
  if (accept('(')) {
    operand_list(')', Operand::Kind::kList, &operands->emplace_back());
    if (!accept(',')) return;
  }
  branch_target(Label::Kind::kPrototype, operands);
}

void Parser::branch_target(Label::Kind wanted, std::vector<Operand>* operands) {
  const Token target = lexer_.peek();
  expect_word("expected a label");
  mentions_.push_back({target, wanted, false, static_cast<uint32_t>(function_->code.size()),
                       static_cast<uint32_t>(operands->size())});
  operands->emplace_back().name = target.text;
}

void Parser::operand(Operand* result) {
  if (accept('[')) return address_operand(result);
  if (accept('{')) {
    operand_list('}', Operand::Kind::kVector, result);
  } else {
    simple_operand(result);
  }
  if (lexer_.peek().is('|')) {
    Operand pair;
    pair.kind = Operand::Kind::kPair;
    pair.elements.push_back(std::move(*result));
    lexer_.advance();
    simple_operand(&pair.elements.emplace_back());
    *result = std::move(pair);
  }
}

void Parser::simple_operand(Operand* result) {
  const Token first = lexer_.peek();
  if (first.is_word()) return word_operand(result);
  if (first.is('-') || first.is('!')) {
    lexer_.advance();
    if (lexer_.peek().is_word() && lexer_.peek().text != "WARP_SZ") {
      word_operand(result);
      result->negated = true;
      return;
    }
    Constant value = unary(0);
    if (!apply_unary(first.text[0], &value)) fail_at(first, "invalid constant expression");
    return set_immediate(constant_tail(value, 0, 0), result);
  }
  set_immediate(constant(), result);
}

void Parser::set_immediate(const Constant& value, Operand* result) {
  result->bits = value.bits;
  switch (value.kind) {
    case Constant::Kind::kSigned:
    case Constant::Kind::kUnsigned:
      result->kind = Operand::Kind::kImmediate;
      break;
    case Constant::Kind::kFloat32:
      result->kind = Operand::Kind::kFloat32;
      break;
    case Constant::Kind::kFloat64:
      result->kind = Operand::Kind::kFloat64;
      break;
  }
}

void Parser::word_operand(Operand* result) {
  const Token word = lexer_.take();
  const Name name = resolve(word.text);
  switch (name.kind) {
    case Name::Kind::kRegister:
      result->kind = Operand::Kind::kRegister;
      result->index = name.index;
      if (lexer_.peek().is_dot_word()) result->name = lexer_.take().text;
      return;
    case Name::Kind::kVariable:
      result->kind = Operand::Kind::kVariable;
      result->index = name.index;
      result->name = word.text;
      result->offset = trailing_offset();
      return;
    case Name::Kind::kNone:
    case Name::Kind::kRegisterRange:
      break;
  }
  if (word.text == "_") {
    result->kind = Operand::Kind::kSink;
  } else if (is_special(word.text)) {
    result->kind = Operand::Kind::kSpecial;
    result->name = word.text;
    if (lexer_.peek().is_dot_word() && lexer_.touches(word)) {
      const std::string_view component = lexer_.take().text;
      result->name = std::string_view(word.text.data(), word.text.size() + component.size());
    }
  } else if (word.text[0] == '%') {
    fail_at(word, "undeclared register");
  } else {
    result->kind = Operand::Kind::kSymbol;
    result->name = word.text;
    result->offset = trailing_offset();
  }
}

// Reads [base + offset, ...], after the opening bracket.
void Parser::address_operand(Operand* result) {
  result->kind = Operand::Kind::kAddress;
  Operand& base = result->elements.emplace_back();
  simple_operand(&base);
  result->offset = std::exchange(base.offset, 0);
  if (base.kind == Operand::Kind::kRegister) result->offset = trailing_offset();
  while (accept(',')) {
    Operand& extra = result->elements.emplace_back();
    if (accept('{')) {
      operand_list('}', Operand::Kind::kVector, &extra);
    } else {
      simple_operand(&extra);
    }
  }
  expect(']');
}

// Reads operands up to `close`, after the opening brace or parenthesis.
void Parser::operand_list(char close, Operand::Kind kind, Operand* result) {
  result->kind = kind;
  if (accept(close)) return;
  do {
    simple_operand(&result->elements.emplace_back());
  } while (accept(','));
  expect(close);
}

// Reads "+8", "-4" or "+-4" after a name; 0 without an offset.
int64_t Parser::trailing_offset() {
  uint64_t offset = 0;
  while (lexer_.peek().is('+') || lexer_.peek().is('-')) {
    const Token sign = lexer_.take();
    const Constant term = constant_tail(unary(0), precedence(Operator::kAdd), 0);
    if (term.is_float()) fail_at(sign, "expected an integer");
    offset = sign.is('+') ? offset + term.bits : offset - term.bits;
  }
  return static_cast<int64_t>(offset);
}

Constant Parser::unary(int depth) {
  if (depth == kDeepestExpression) fail("the expression nests too deeply");
  const Token token = lexer_.peek();
  Constant value;
  if (token.kind == Token::Kind::kNumber) {
    if (!parse_number(token.text, &value)) fail("malformed number");
    lexer_.advance();
  } else if (token.is_word() && token.text == "WARP_SZ") {
    lexer_.advance();
    value.bits = 32;
  } else if (token.is('-') || token.is('+') || token.is('!') || token.is('~')) {
    lexer_.advance();
    value = unary(depth + 1);
    if (!apply_unary(token.text[0], &value)) fail_at(token, "invalid constant expression");
  } else if (accept('(')) {
    if (at_directive(".s64") || at_directive(".u64")) {  // a cast
      const bool is_unsigned = lexer_.take().text == ".u64";
      expect(')');
      value = unary(depth + 1);
      if (value.is_float()) fail_at(token, "only integers can be cast");
      value.kind = is_unsigned ? Constant::Kind::kUnsigned : Constant::Kind::kSigned;
    } else {
      value = constant_tail(unary(depth + 1), 0, depth + 1);
      expect(')');
    }
  } else {
    fail("expected an operand");
  }
  return value;
}

// Reads the operators after `left` that bind tighter than `lowest`.
Constant Parser::constant_tail(Constant left, int lowest, int depth) {
  for (;;) {
    const Token at = lexer_.peek();
    const Operator op = accept_operator(lowest);
    if (op == Operator::kNone) break;
    const Constant right = constant_tail(unary(depth), precedence(op), depth);
    Constant result;
    if (!apply_binary(op, left, right, &result)) {
      fail_at(at,
              "a constant expression divides by zero, or has an integer operator with a "
              "floating-point operand");
    }
    left = result;
  }
  if (lowest == 0 && accept('?')) {
    const Constant yes = constant_tail(unary(depth + 1), 0, depth + 1);
    expect(':');
    const Constant no = constant_tail(unary(depth + 1), 0, depth + 1);
    return left.bits != 0 ? yes : no;
  }
  return left;
}

Operator Parser::accept_operator(int lowest) {
  if (lexer_.peek().kind != Token::Kind::kPunctuation) return Operator::kNone;
  const char first = lexer_.peek().text[0];
  const char second = lexer_.following();
  Operator op = Operator::kNone;
  bool two = false;
  const auto choose = [&](char next, Operator longer, Operator shorter) {
    two = second == next;
    op = two ? longer : shorter;
  };
  switch (first) {
    case '*':
      op = Operator::kMultiply;
      break;
    case '/':
      op = Operator::kDivide;
      break;
    case '%':
      op = Operator::kRemainder;
      break;
    case '+':
      op = Operator::kAdd;
      break;
    case '-':
      op = Operator::kSubtract;
      break;
    case '^':
      op = Operator::kXor;
      break;
    case '&':
      choose('&', Operator::kLogicalAnd, Operator::kAnd);
      break;
    case '|':
      choose('|', Operator::kLogicalOr, Operator::kOr);
      break;
    case '=':
      choose('=', Operator::kEqual, Operator::kNone);
      break;
    case '!':
      choose('=', Operator::kNotEqual, Operator::kNone);
      break;
    case '<':
      choose('=', Operator::kLessEqual, Operator::kLess);
      if (!two) choose('<', Operator::kShiftLeft, Operator::kLess);
      break;
    case '>':
      choose('=', Operator::kGreaterEqual, Operator::kGreater);
      if (!two) choose('>', Operator::kShiftRight, Operator::kGreater);
      break;
    default:
      break;
  }
  if (op == Operator::kNone || precedence(op) <= lowest) return Operator::kNone;
  lexer_.advance();
  if (two) lexer_.advance();
  return op;
}

}  // namespace softgpu::ptx
