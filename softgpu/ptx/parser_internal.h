// The recursive-descent parser behind parse(). Private to softgpu/ptx.
//
// One Parser per text, on one thread. Errors are ParseError exceptions, which parse() catches.
// Split by content: parser.cpp reads the module, parser_variable.cpp declarations and initialisers,
// parser_function.cpp functions with their scopes and labels, parser_operand.cpp instructions.
//
// Names: one table holds the meaning of each name in the current scope; leaving a scope undoes its
// declarations. A range `.reg .b32 %r<100>` is one entry under "%r", and each of its registers gets
// an index at its first mention. A label may be mentioned before its definition, so mentions are
// resolved when a scope is closed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "softgpu/ptx/constant.h"
#include "softgpu/ptx/flat_map.h"
#include "softgpu/ptx/lexer.h"
#include "softgpu/ptx/module.h"

namespace softgpu::ptx {

class Parser {
 public:
  explicit Parser(Module* module) : module_(module), lexer_(module->text) {}
  void run();

 private:
  // The meaning of a name in a function. kNone also marks a name that went out of scope.
  struct Name {
    enum class Kind : uint8_t { kNone, kRegister, kRegisterRange, kVariable };
    Kind kind = Kind::kNone;
    Type type = Type::kNone;
    uint32_t depth = 0;  // depth of the declaring scope
    // In the function's registers or variables. For a range: its number among the ranges, because
    // a register of a range gets an index at its first use.
    uint32_t index = 0;
    uint32_t count = 0;  // registers in a range
  };
  struct Label {
    enum class Kind : uint8_t { kNone, kPosition, kBranchTable, kPrototype };
    Kind kind = Kind::kNone;
    uint32_t depth = 0;
    uint32_t index = 0;
  };
  // A mention of a label: operand `operand` of instruction `item`, or element `operand` of branch
  // table `item`.
  struct Mention {
    Token token;
    Label::Kind wanted;
    bool in_table = false;
    uint32_t item = 0;
    uint32_t operand = 0;
  };
  template <typename T>
  struct Undo {
    std::string_view name;
    T previous;
  };
  struct Scope {
    size_t names_begin;     // in name_undo_
    size_t labels_begin;    // in label_undo_
    size_t mentions_begin;  // in mentions_
  };
  // A parsed `.space .align n .type name[...]`, without initialiser.
  struct Declaration {
    std::string_view name;
    Type element = Type::kNone;
    uint32_t align_bytes = 1;
    uint32_t vector = 1;
    bool managed = false;
    Reference reference = Reference::kNone;
    bool unsized = false;              // the first dimension is []
    std::vector<uint64_t> dimensions;  // 0 for the unsized one
    uint64_t size_bytes = 0;
  };

  // Tokens.
  [[noreturn]] void fail(std::string_view what) const { fail_at(lexer_.peek(), what); }
  [[noreturn]] void fail_at(const Token& token, std::string_view what) const {
    throw make_error(token.line, what, token.text);
  }
  bool accept(char c);
  void expect(char c);
  bool at_directive(std::string_view name) const;
  bool accept_directive(std::string_view name);
  std::string_view expect_word(std::string_view what);
  uint64_t expect_integer(uint64_t limit, std::string_view what);
  void skip_to_semicolon();

  // parser.cpp
  void module_item();
  void version_directive();
  void target_directive();
  void section_directive();
  void file_directive();
  void alias_directive();
  void resolve_aliases();

  // parser_variable.cpp
  void module_variables(Space space, Linkage linkage);
  void add_module_variable(Variable variable, const Token& at);
  // attribute_list() and declaration_type() read a declaration up to its first name. declarator()
  // reads one name with its dimensions.
  bool attribute_list();
  void declaration_type(Declaration* declaration);
  void declarator(Declaration* declaration, bool name_required);
  Variable make_variable(const Declaration& declaration, Space space, Linkage linkage) const;
  void initialiser(const Declaration& declaration, Variable* variable);
  void initialiser_list(const Declaration& declaration, size_t dimension, uint64_t begin_bytes,
                        uint64_t extent_bytes, Variable* variable);
  void initialiser_element(Type type, uint64_t offset, uint64_t limit, Variable* variable);
  void put_bytes(uint64_t offset, uint64_t bits, uint32_t size, Variable* variable);

  // parser_function.cpp
  void function(bool is_entry, Linkage linkage);
  void parameter_list(std::vector<Parameter>* parameters);
  void function_attributes();
  void dimensions(uint32_t (&counts)[3]);
  void declare_parameters(const std::vector<Parameter>& parameters);
  void add_function(Function function, const Token& at);
  void body();
  void body_statement();
  void body_directive();
  void list_of_targets(uint32_t table);
  void register_declaration();
  void local_variables(Space space);
  void labelled(const Token& label);
  void loc_directive();
  void open_scope();
  void close_scope();
  void declare(const Token& at, std::string_view name, Name meaning);
  void define_label(const Token& at, Label meaning);
  void settle(const Mention& mention, const Label& label);
  // The register or variable that a word means here; kNone if it is neither.
  Name resolve(std::string_view word);

  // parser_operand.cpp
  void instruction(const Token& opcode, std::optional<Guard> guard);
  Guard guard();
  void call_operands(std::vector<Operand>* operands);
  void branch_target(Label::Kind wanted, std::vector<Operand>* operands);
  void operand(Operand* result);
  void simple_operand(Operand* result);
  void word_operand(Operand* result);
  void address_operand(Operand* result);
  void operand_list(char close, Operand::Kind kind, Operand* result);
  int64_t trailing_offset();
  static void set_immediate(const Constant& value, Operand* result);

  // Constant expressions. `depth` bounds recursion.
  Constant constant() { return constant_tail(unary(0), 0, 0); }
  Constant unary(int depth);
  Constant constant_tail(Constant left, int lowest, int depth);
  Operator accept_operator(int lowest);

  Module* module_;
  Lexer lexer_;
  FlatMap<std::string_view, uint32_t> variable_index_;  // into Module::variables, plus one
  FlatMap<std::string_view, uint32_t> function_index_;  // into Module::functions, plus one
  struct Alias {
    Token name;
    std::string_view target;
  };
  std::vector<Alias> aliases_;
  uint64_t initial_bytes_ = 0;  // of all variables together

  // State of the function being read.
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  FlatMap<std::string_view, Name> names_;
  FlatMap<std::string_view, Label> labels_;
  FlatMap<uint64_t, uint32_t> range_registers_;  // range << 32 | number in it: index plus one
  uint32_t range_count_ = 0;
  std::vector<Undo<Name>> name_undo_;
  std::vector<Undo<Label>> label_undo_;
  std::vector<Mention> mentions_;
};

}  // namespace softgpu::ptx
