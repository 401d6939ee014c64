#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "softgpu/ptx/parser_internal.h"

namespace softgpu::ptx {
namespace {

constexpr size_t kDeepestScope = 64;
constexpr uint64_t kLargestParameters = 1u << 20;
constexpr uint64_t kAnyUint32 = std::numeric_limits<uint32_t>::max();

}  // namespace

void Parser::function(bool is_entry, Linkage linkage) {
  Function function;
  function.is_entry = is_entry;
  function.linkage = linkage;
  function_ = &function;
  open_scope();
  if (accept_directive(".attribute")) attribute_list();
  if (!is_entry && lexer_.peek().is('(')) parameter_list(&function.returns);
  const Token name = lexer_.peek();
  function.name = expect_word("expected the name of a function");
  if (lexer_.peek().is('(')) parameter_list(&function.parameters);
  function_attributes();
  declare_parameters(function.parameters);
  declare_parameters(function.returns);
  if (!accept(';')) {
    function.is_defined = true;
    body();
  }
  close_scope();
  function_ = nullptr;
  add_function(std::move(function), name);
}

void Parser::add_function(Function function, const Token& at) {
  uint32_t& index = function_index_[function.name];
  if (index == 0) {
    module_->functions.push_back(std::move(function));
    index = static_cast<uint32_t>(module_->functions.size());
    return;
  }
  Function& known = module_->functions[index - 1];
  if (!function.is_defined) return;
  if (known.is_defined) fail_at(at, "defined twice");
  known = std::move(function);
}

void Parser::parameter_list(std::vector<Parameter>* parameters) {
  uint64_t end_bytes = 0;
  expect('(');
  if (accept(')')) return;
  do {
    if (at_directive(".reg")) fail("parameters in registers are not supported");
    if (!accept_directive(".param")) fail("expected .param");
    Declaration declaration;
    declaration_type(&declaration);
    const Token at = lexer_.peek();
    declarator(&declaration, false);
    const uint64_t align = declaration.align_bytes;
    const uint64_t offset = (end_bytes + align - 1) & ~(align - 1);
    end_bytes = offset + declaration.size_bytes;
    if (end_bytes > kLargestParameters) fail_at(at, "the parameters are too large");
    parameters->push_back({declaration.name, static_cast<uint32_t>(offset),
                           static_cast<uint32_t>(declaration.size_bytes), declaration.align_bytes,
                           declaration.element});
  } while (accept(','));
  expect(')');
}

void Parser::function_attributes() {
  while (lexer_.peek().is_dot_word()) {
    const Token directive = lexer_.take();
    if (directive.text == ".maxntid") {
      dimensions(function_->max_threads);
    } else if (directive.text == ".reqntid") {
      dimensions(function_->required_threads);
    } else if (directive.text == ".reqnctapercluster") {
      dimensions(function_->required_cluster);
    } else if (directive.text == ".pragma") {
      skip_to_semicolon();
    } else {
      // Ignored: advice to compilers (.minnctapersm, .maxnreg, .noreturn), limits of launches
      // (.maxnctapersm, .maxclusterrank), and rules for launches with clusters (.explicitcluster,
      // .blocksareclusters).
      while (lexer_.peek().kind == Token::Kind::kNumber || lexer_.peek().is(',')) lexer_.advance();
    }
  }
}

void Parser::dimensions(uint32_t (&counts)[3]) {
  std::fill(std::begin(counts), std::end(counts), 1u);
  size_t i = 0;
  do {
    if (i == 3) fail("expected at most three dimensions");
    counts[i++] = static_cast<uint32_t>(expect_integer(kAnyUint32, "expected a dimension"));
  } while (accept(','));
}

void Parser::declare_parameters(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    Variable variable;
    variable.name = parameter.name;
    variable.space = Space::kParam;
    variable.element = parameter.element;
    variable.size_bytes = parameter.size_bytes;
    variable.align_bytes = parameter.align_bytes;
    function_->variables.push_back(std::move(variable));
    if (parameter.name.empty() || parameter.name == "_") continue;
    Name meaning;
    meaning.kind = Name::Kind::kVariable;
    meaning.index = static_cast<uint32_t>(function_->variables.size() - 1);
    declare(lexer_.peek(), parameter.name, meaning);
  }
}

void Parser::open_scope() {
  if (scopes_.size() == kDeepestScope) fail("scopes nest too deeply");
  scopes_.push_back({name_undo_.size(), label_undo_.size(), mentions_.size()});
}

void Parser::close_scope() {
  const Scope scope = scopes_.back();
  const uint32_t depth = static_cast<uint32_t>(scopes_.size());
  size_t kept = scope.mentions_begin;
  for (size_t i = scope.mentions_begin; i < mentions_.size(); ++i) {
    const Mention mention = mentions_[i];
    const Label* label = labels_.find(mention.token.text);
    if (label != nullptr && label->kind != Label::Kind::kNone && label->depth == depth) {
      settle(mention, *label);
    } else if (depth == 1) {
      fail_at(mention.token, "undefined label");
    } else {
      mentions_[kept++] = mention;  // an outer scope may define it
    }
  }
  mentions_.resize(kept);

  for (; name_undo_.size() > scope.names_begin; name_undo_.pop_back()) {
    names_[name_undo_.back().name] = name_undo_.back().previous;
  }
  for (; label_undo_.size() > scope.labels_begin; label_undo_.pop_back()) {
    labels_[label_undo_.back().name] = label_undo_.back().previous;
  }
  scopes_.pop_back();
}

void Parser::declare(const Token& at, std::string_view name, Name meaning) {
  Name& entry = names_[name];
  meaning.depth = static_cast<uint32_t>(scopes_.size());
  if (entry.kind != Name::Kind::kNone && entry.depth == meaning.depth) {
    fail_at(at, "'" + std::string(name.substr(0, 60)) + "' is declared twice");
  }
  name_undo_.push_back({name, entry});
  entry = meaning;
}

void Parser::define_label(const Token& at, Label meaning) {
  Label& entry = labels_[at.text];
  meaning.depth = static_cast<uint32_t>(scopes_.size());
  if (entry.kind != Label::Kind::kNone && entry.depth == meaning.depth) {
    fail_at(at, "the label is defined twice");
  }
  label_undo_.push_back({at.text, entry});
  entry = meaning;
}

void Parser::settle(const Mention& mention, const Label& label) {
  if (label.kind != mention.wanted)
    fail_at(mention.token, "this kind of label cannot be used here");
  if (mention.in_table) {
    function_->branch_tables[mention.item][mention.operand] = label.index;
    return;
  }
  Operand& operand = function_->code[mention.item].operands[mention.operand];
  operand.kind =
      label.kind == Label::Kind::kPosition ? Operand::Kind::kLabel : Operand::Kind::kTable;
  operand.index = label.index;
}

Parser::Name Parser::resolve(std::string_view word) {
  const Name* exact = names_.find(word);
  const bool has_exact = exact != nullptr && (exact->kind == Name::Kind::kRegister ||
                                              exact->kind == Name::Kind::kVariable);
  const Name found = has_exact ? *exact : Name{};

  // "%r12" may be number 12 of "%r<20>" or number 2 of "%r1<5>". A number has at most this many
  // digits.
  constexpr size_t kLongestNumber = 9;
  size_t digits = 0;
  while (digits < kLongestNumber && digits + 1 < word.size()) {
    const char c = word[word.size() - digits - 1];
    if (c < '0' || c > '9') break;
    ++digits;
  }
  for (; digits > 0; --digits) {
    const size_t split = word.size() - digits;
    if (word[split] == '0' && digits > 1) continue;
    const Name* range = names_.find(word.substr(0, split));
    if (range == nullptr || range->kind != Name::Kind::kRegisterRange) continue;
    uint32_t number = 0;
    std::from_chars(word.data() + split, word.data() + word.size(), number);
    if (number >= range->count || range->depth < found.depth) continue;
    uint32_t& index = range_registers_[uint64_t{range->index} << 32 | number];
    if (index == 0) {
      function_->registers.push_back({word, range->type});
      index = static_cast<uint32_t>(function_->registers.size());
    }
    Name reg = *range;
    reg.kind = Name::Kind::kRegister;
    reg.index = index - 1;
    return reg;
  }
  return found;
}

void Parser::body() {
  const size_t outer = scopes_.size();
  expect('{');
  open_scope();
  while (scopes_.size() > outer) body_statement();
}

void Parser::body_statement() {
  const Token& next = lexer_.peek();
  if (accept(';')) return;
  if (accept('{')) return open_scope();
  if (accept('}')) return close_scope();
  if (next.is_dot_word()) return body_directive();
  if (next.is('@')) {
    const Guard condition = guard();
    const Token opcode = lexer_.peek();
    expect_word("expected an instruction");
    return instruction(opcode, condition);
  }
  const Token word = next;
  expect_word("expected a statement");
  if (accept(':')) return labelled(word);
  instruction(word, std::nullopt);
}

void Parser::body_directive() {
  if (accept_directive(".loc")) return loc_directive();
  if (accept_directive(".reg")) return register_declaration();
  if (accept_directive(".local")) return local_variables(Space::kLocal);
  if (accept_directive(".shared")) return local_variables(Space::kShared);
  if (accept_directive(".param")) return local_variables(Space::kParam);
  // Static variables: the rest of the module can name them.
  if (accept_directive(".global")) return module_variables(Space::kGlobal, Linkage::kInternal);
  if (accept_directive(".const")) return module_variables(Space::kConst, Linkage::kInternal);
  if (accept_directive(".pragma")) return skip_to_semicolon();
  if (accept_directive(".file")) return file_directive();
  if (accept_directive(".section")) return section_directive();
  fail("unknown directive in a function");
}

void Parser::register_declaration() {
  const Token type_token = lexer_.peek();
  const Type type =
      type_token.is_dot_word() ? type_from_name(type_token.text.substr(1)) : Type::kNone;
  if (type == Type::kNone) fail("expected the type of a register");
  lexer_.advance();
  do {
    const Token at = lexer_.peek();
    Name meaning;
    meaning.type = type;
    const std::string_view name = expect_word("expected the name of a register");
    if (accept('<')) {
      meaning.kind = Name::Kind::kRegisterRange;
      meaning.count = static_cast<uint32_t>(expect_integer(kAnyUint32, "expected a count"));
      meaning.index = range_count_++;
      expect('>');
    } else {
      meaning.kind = Name::Kind::kRegister;
      meaning.index = static_cast<uint32_t>(function_->registers.size());
      function_->registers.push_back({name, type});
    }
    declare(at, name, meaning);
  } while (accept(','));
  expect(';');
}

void Parser::local_variables(Space space) {
  Declaration declaration;
  declaration_type(&declaration);
  do {
    const Token at = lexer_.peek();
    declarator(&declaration, true);
    Variable variable = make_variable(declaration, space, Linkage::kInternal);
    if (accept('=')) initialiser(declaration, &variable);
    function_->variables.push_back(std::move(variable));
    Name meaning;
    meaning.kind = Name::Kind::kVariable;
    meaning.index = static_cast<uint32_t>(function_->variables.size() - 1);
    declare(at, declaration.name, meaning);
  } while (accept(','));
  expect(';');
}

// Reads the statement that follows `label:`, if it is a directive, and defines the label.
void Parser::labelled(const Token& label) {
  Label meaning;
  if (accept_directive(".branchtargets")) {
    meaning.kind = Label::Kind::kBranchTable;
    meaning.index = static_cast<uint32_t>(function_->branch_tables.size());
    function_->branch_tables.emplace_back();
    list_of_targets(meaning.index);
  } else if (accept_directive(".callprototype")) {
    meaning.kind = Label::Kind::kPrototype;
    meaning.index = static_cast<uint32_t>(function_->prototypes.size());
    Prototype& prototype = function_->prototypes.emplace_back();
    if (lexer_.peek().is('(')) parameter_list(&prototype.returns);
    expect_word("expected '_'");
    if (lexer_.peek().is('(')) parameter_list(&prototype.parameters);
    skip_to_semicolon();  // .noreturn, .abi_preserve
  } else if (accept_directive(".calltargets")) {
    meaning.kind = Label::Kind::kPrototype;
    meaning.index = static_cast<uint32_t>(function_->prototypes.size());
    function_->prototypes.emplace_back();
    skip_to_semicolon();
  } else {
    meaning.kind = Label::Kind::kPosition;
    meaning.index = static_cast<uint32_t>(function_->code.size());
  }
  define_label(label, meaning);
}

void Parser::list_of_targets(uint32_t table) {
  std::vector<uint32_t>& targets = function_->branch_tables[table];
  do {
    const Token target = lexer_.peek();
    expect_word("expected a label");
    mentions_.push_back(
        {target, Label::Kind::kPosition, true, table, static_cast<uint32_t>(targets.size())});
    targets.push_back(0);
  } while (accept(','));
  expect(';');
}

// `.loc 1 20 5, function_name $L__info_string0+8, inlined_at 1 3 1`: it ends without punctuation.
void Parser::loc_directive() {
  for (int i = 0; i < 3; ++i) expect_integer(kAnyUint32, "expected a number");
  while (accept(',')) {
    const Token attribute = lexer_.peek();
    expect_word("expected function_name or inlined_at");
    if (attribute.text == "function_name") {
      expect_word("expected a label");
      trailing_offset();
    } else {
      while (lexer_.peek().kind == Token::Kind::kNumber) lexer_.advance();
    }
  }
}

}  // namespace softgpu::ptx
