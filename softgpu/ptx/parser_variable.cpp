#include <bit>
#include <limits>
#include <utility>

#include "softgpu/ptx/parser_internal.h"

namespace softgpu::ptx {
namespace {

constexpr uint64_t kLargestAlignment = 1u << 20;
constexpr uint64_t kLargestVariable = 1ull << 40;  // keeps products of dimensions far from overflow

}  // namespace

// Reads the list after `.attribute`, such as `(.managed, .unified(n, n))`. Returns true if .managed
// is among the attributes.
bool Parser::attribute_list() {
  bool managed = false;
  expect('(');
  for (int open = 1; open > 0; lexer_.advance()) {
    const Token& token = lexer_.peek();
    if (token.kind == Token::Kind::kEnd) fail("expected ')'");
    if (token.is('(')) ++open;
    if (token.is(')')) --open;
    managed |= at_directive(".managed");
  }
  return managed;
}

void Parser::declaration_type(Declaration* declaration) {
  bool pointee = false;  // after .ptr, space and alignment describe the target
  bool aligned = false;
  while (lexer_.peek().is_dot_word()) {
    const Token token = lexer_.take();
    const std::string_view word = token.text;
    if (word == ".align") {
      const Token at = lexer_.peek();
      const uint64_t align = expect_integer(kLargestAlignment, "expected an alignment");
      if (!std::has_single_bit(align)) fail_at(at, "an alignment must be a power of two");
      if (!pointee) {
        declaration->align_bytes = static_cast<uint32_t>(align);
        aligned = true;
      }
    } else if (word == ".attribute") {
      declaration->managed |= attribute_list();
    } else if (word == ".ptr") {
      pointee = true;
    } else if (word == ".v2" || word == ".v4" || word == ".v8") {
      declaration->vector = static_cast<uint32_t>(word[2] - '0');
    } else if (word == ".texref" || word == ".samplerref" || word == ".surfref") {
      declaration->element = Type::kB64;  // an opaque handle
      declaration->reference = word == ".texref"    ? Reference::kTexture
                               : word == ".surfref" ? Reference::kSurface
                                                    : Reference::kSampler;
    } else if (const Type type = type_from_name(word.substr(1)); type != Type::kNone) {
      if (type == Type::kPred) fail_at(token, "a variable of type .pred must be a register");
      declaration->element = type;
    } else if (!pointee) {
      fail_at(token, "unknown attribute of a declaration");
    }
  }
  if (declaration->element == Type::kNone) fail("expected a type");
  if (!aligned) declaration->align_bytes = size_of(declaration->element) * declaration->vector;
}

void Parser::declarator(Declaration* declaration, bool name_required) {
  declaration->name = {};
  declaration->dimensions.clear();
  declaration->unsized = false;
  if (name_required || lexer_.peek().is_word()) {
    declaration->name = expect_word("expected the name of a variable");
  }
  declaration->size_bytes = uint64_t{size_of(declaration->element)} * declaration->vector;
  while (accept('[')) {
    if (declaration->dimensions.empty() && accept(']')) {
      declaration->unsized = true;
      declaration->dimensions.push_back(0);
      continue;
    }
    const Token at = lexer_.peek();
    const Constant count = constant();
    if (count.is_float() || count.bits > kLargestVariable) fail_at(at, "invalid array size");
    expect(']');
    declaration->dimensions.push_back(count.bits);
    declaration->size_bytes *= count.bits;
    if (declaration->size_bytes > kLargestVariable) fail_at(at, "invalid array size");
  }
  if (declaration->unsized) {
    declaration->size_bytes = 0;
  }
}

Variable Parser::make_variable(const Declaration& declaration, Space space, Linkage linkage) const {
  Variable variable;
  variable.name = declaration.name;
  variable.space = space;
  variable.element = declaration.element;
  variable.linkage = linkage;
  variable.size_bytes = declaration.size_bytes;
  variable.align_bytes = declaration.align_bytes;
  variable.managed = declaration.managed;
  variable.reference = declaration.reference;
  return variable;
}

void Parser::module_variables(Space space, Linkage linkage) {
  Declaration declaration;
  declaration_type(&declaration);
  do {
    const Token at = lexer_.peek();
    declarator(&declaration, true);
    Variable variable = make_variable(declaration, space, linkage);
    if (accept('=')) {
      if (space == Space::kShared || linkage == Linkage::kExtern)
        fail("shared and extern variables cannot be initialised");
      initialiser(declaration, &variable);
    }
    add_module_variable(std::move(variable), at);
  } while (accept(','));
  expect(';');
}

void Parser::add_module_variable(Variable variable, const Token& at) {
  uint32_t& index = variable_index_[variable.name];
  if (index == 0) {
    module_->variables.push_back(std::move(variable));
    index = static_cast<uint32_t>(module_->variables.size());
    return;
  }
  Variable& known = module_->variables[index - 1];
  if (known.space != variable.space) fail_at(at, "already declared in another state space");
  if (variable.linkage == Linkage::kExtern) return;
  if (known.linkage != Linkage::kExtern && known.linkage != Linkage::kCommon) {
    fail_at(at, "defined twice");
  }
  known = std::move(variable);
}

// Reads the value after `=`: `5`, `symbol+4` or `{...}`, whose braces nest like the array's
// dimensions.
void Parser::initialiser(const Declaration& declaration, Variable* variable) {
  const uint32_t element = size_of(declaration.element);
  if (!lexer_.peek().is('{')) {
    if (!declaration.dimensions.empty()) fail("expected '{'");
    initialiser_element(declaration.element, 0, element, variable);
    return;
  }
  const uint64_t extent =
      declaration.unsized ? std::numeric_limits<uint64_t>::max() : declaration.size_bytes;
  initialiser_list(declaration, 0, 0, extent, variable);
  if (declaration.unsized) {
    uint64_t row = uint64_t{element} * declaration.vector;
    for (size_t i = 1; i < declaration.dimensions.size(); ++i) row *= declaration.dimensions[i];
    if (row == 0) fail("invalid array size");
    variable->size_bytes = (variable->initial.size() + row - 1) / row * row;
  }
}

// Reads one pair of braces, which fills at most `extent_bytes` bytes from `begin_bytes` on. Its
// commas separate the elements of `dimension`. After the last dimension comes the vector, whose
// parts may also be in braces.
void Parser::initialiser_list(const Declaration& declaration, size_t dimension,
                              uint64_t begin_bytes, uint64_t extent_bytes, Variable* variable) {
  const uint32_t element = size_of(declaration.element);
  uint64_t row = element;  // bytes that a nested pair of braces fills
  const bool nestable = dimension < declaration.dimensions.size();
  if (nestable) {
    row *= declaration.vector;
    for (size_t i = dimension + 1; i < declaration.dimensions.size(); ++i) {
      row *= declaration.dimensions[i];
    }
  }
  expect('{');
  if (accept('}')) return;
  uint64_t used = 0;
  do {
    if (lexer_.peek().is('}')) break;  // a trailing comma
    if (lexer_.peek().is('{')) {
      if (!nestable) fail("braces nest deeper than the array");
      if (row == 0 || used % row != 0 || used + row > extent_bytes) fail("too many initialisers");
      initialiser_list(declaration, dimension + 1, begin_bytes + used, row, variable);
      used += row;
    } else {
      if (element > extent_bytes || used > extent_bytes - element) fail("too many initialisers");
      initialiser_element(declaration.element, begin_bytes + used, element, variable);
      used += element;
    }
  } while (accept(','));
  expect('}');
}

// Reads a number, symbol, symbol+addend, generic(symbol), or some bytes of an address:
// 0xFF00(symbol).
void Parser::initialiser_element(Type type, uint64_t offset, uint64_t limit, Variable* variable) {
  const uint32_t size = size_of(type);
  if (size > limit) fail("too many initialisers");
  Relocation relocation;
  relocation.offset = offset;
  relocation.size_bytes = static_cast<uint8_t>(size);
  bool masked = false;

  if (!lexer_.peek().is_word()) {
    const Token at = lexer_.peek();
    const Constant value = constant();
    if (!lexer_.peek().is('(')) {
      put_bytes(offset, element_bits(type, value), size, variable);
      return;
    }
    // A mask selects adjacent bits: 0xFF, 0xFF00, ...
    if (value.is_float() || value.bits == 0) fail_at(at, "expected a mask");
    relocation.shift_bits = static_cast<uint8_t>(std::countr_zero(value.bits));
    const uint64_t bits = value.bits >> relocation.shift_bits;
    if ((bits & (bits + 1)) != 0 || std::popcount(bits) % 8 != 0 ||
        static_cast<uint32_t>(std::popcount(bits)) > size * 8) {
      fail_at(at, "expected a mask of whole bytes");
    }
    relocation.size_bytes = static_cast<uint8_t>(std::popcount(bits) / 8);
    masked = true;
    expect('(');
  }

  std::string_view word = expect_word("expected a number or a symbol");
  if (word == "generic" && accept('(')) {
    relocation.generic = true;
    word = expect_word("expected a symbol");
    relocation.addend = trailing_offset();
    expect(')');
  }
  relocation.symbol = word;
  relocation.addend += trailing_offset();
  if (masked) expect(')');
  put_bytes(offset, 0, size, variable);
  variable->relocations.push_back(relocation);
}

void Parser::put_bytes(uint64_t offset, uint64_t bits, uint32_t size, Variable* variable) {
  // Nested braces can skip many bytes with few characters, so without this limit hostile text could
  // take much memory. A real initialiser has about as many bytes as its text has characters.
  const uint64_t allowance = (64u << 20) + 16 * module_->text.size();
  const uint64_t end = offset + size;
  if (end > variable->initial.size()) {
    initial_bytes_ += end - variable->initial.size();
    if (end > allowance || initial_bytes_ > allowance) fail("the initialisers are too large");
    variable->initial.resize(end);
  }
  for (uint32_t i = 0; i < size; ++i) {
    variable->initial[offset + i] = i < 8 ? static_cast<uint8_t>(bits >> (8 * i)) : 0;
  }
}

}  // namespace softgpu::ptx
