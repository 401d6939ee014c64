// The parsed form of one PTX translation unit, which ptx::parse() produces and exec/ consumes.
//
// Names are resolved as far as one unit allows. Every register is an index into its function's
// register list (nested `{ .reg ... }` scopes and `%r<10>` ranges are resolved), every label an
// index into the instruction list, and every parameter or local variable an index into the
// function's variables. Symbols of module scope (globals, shared variables, functions) stay names,
// because the linker joins several units. Opcode and modifiers stay text: exec/ decodes them with
// its list of supported forms, so this header does not grow with the instruction set.
//
// A Module owns the text it was parsed from; every string_view points into that text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace softgpu::ptx {

enum class Space : uint8_t { kGeneric, kConst, kGlobal, kLocal, kParam, kShared };

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kF32,
  kF64,
  kU16x2,
  kS16x2,
  kTf32,
  kE4m3x2,
  kE5m2x2,
  kF32x2,
};
// "f32" gives kF32; kNone if the name is not a type.
Type type_from_name(std::string_view name);
uint32_t size_of(Type type);  // bytes; 0 for kNone, 1 for kPred

// Content of an initialised variable that is not a number: the address of `symbol` plus `addend`,
// shifted right by `shift_bits` and truncated to `size_bytes`, at byte `offset`. `generic` requests
// the generic address (generic(symbol) in PTX).
struct Relocation {
  uint64_t offset = 0;
  std::string_view symbol;
  int64_t addend = 0;
  uint8_t size_bytes = 8;
  uint8_t shift_bits = 0;
  bool generic = false;
};

enum class Linkage : uint8_t { kInternal, kVisible, kExtern, kWeak, kCommon };

enum class Reference : uint8_t { kNone, kTexture, kSampler, kSurface };

struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  Type element = Type::kB8;
  Linkage linkage = Linkage::kInternal;
  uint64_t size_bytes = 0;  // 0 for `extern .shared x[]`: dynamic shared memory
  uint32_t align_bytes = 1;
  bool managed = false;  // .attribute(.managed)
  Reference reference = Reference::kNone;
  std::vector<uint8_t> initial;  // empty, or at most size_bytes; the rest is zero
  std::vector<Relocation> relocations;
};

// A formal parameter or return value, in declaration order.
struct Parameter {
  std::string_view name;
  uint32_t offset_bytes = 0;  // in the parameter buffer, with the ABI's alignment
  uint32_t size_bytes = 0;
  uint32_t align_bytes = 1;  // of the parameter itself, never of a pointer's target
  Type element = Type::kB8;
};

struct Operand {
  enum class Kind : uint8_t {
    kSink,       // _
    kRegister,   // index: into Function::registers
    kImmediate,  // bits: an integer constant of 64 bits
    kFloat32,    // bits: 0f3F800000
    kFloat64,    // bits: 0d3FF0000000000000, or a decimal literal
    kSpecial,    // name: "%tid.x", "%laneid", "%clock64", "WARP_SZ"
    kVariable,   // index: into Function::variables (a parameter or local/shared/param variable)
    kSymbol,     // name: a variable or function of module scope
    kLabel,      // index: into Function::code
    kAddress,    // [elements[0] + offset]: a register, variable, symbol or immediate; more
                 // contents of the brackets (a tensor's coordinates) follow in elements
    kVector,     // {elements...}
    kPair,       // elements[0] | elements[1], such as the two destinations of setp or shfl
    kList,       // (elements...): arguments of call
    kTable,      // index: into Function::branch_tables (brx) or Function::prototypes (call)
  };
  Kind kind = Kind::kSink;
  bool negated = false;  // !%p1 or -%r1
  uint32_t index = 0;
  uint64_t bits = 0;
  int64_t offset = 0;     // kAddress; also symbol+offset and variable+offset
  std::string_view name;  // kRegister: a byte selector of the video instructions (".b0"), or empty
  std::vector<Operand> elements;
};

struct Guard {
  uint32_t reg = 0;
  bool negated = false;
};

struct Instruction {
  std::string_view opcode;                  // "add"
  std::vector<std::string_view> modifiers;  // {"rn", "ftz", "f32"}: in order, without dots
  std::optional<Guard> guard;               // @%p1, @!%p1
  std::vector<Operand> operands;
  uint32_t line = 0;  // in the PTX text, from 1
};

// `proto: .callprototype (.param .b32 _) _ (.param .b64 _);`: the shape of an indirect call. Empty
// for `.calltargets`.
struct Prototype {
  std::vector<Parameter> returns;
  std::vector<Parameter> parameters;
};

struct Register {
  std::string_view name;
  Type type = Type::kB32;
};

struct Function {
  std::string_view name;
  bool is_entry = false;
  bool is_defined = false;  // false: a declaration only
  Linkage linkage = Linkage::kInternal;
  std::vector<Parameter> returns;
  std::vector<Parameter> parameters;
  // First the parameters (space kParam; `parameters` then `returns`, in order), then the .local,
  // .shared and .param variables declared in the body, in any scope.
  std::vector<Variable> variables;
  std::vector<Register> registers;                   // of a range: only those that the code uses
  std::vector<Instruction> code;                     // a label may equal code.size()
  std::vector<std::vector<uint32_t>> branch_tables;  // .branchtargets: label positions
  std::vector<Prototype> prototypes;
  uint32_t max_threads[3] = {0, 0, 0};       // .maxntid; 0 where absent
  uint32_t required_threads[3] = {0, 0, 0};  // .reqntid
  uint32_t required_cluster[3] = {0, 0, 0};  // .reqnctapercluster
};

struct Module {
  std::string text;
  uint32_t target_sm = 0;  // .target sm_75 -> 75
  std::vector<Variable> variables;
  // One entry per name: a definition replaces its declaration. An alias is a copy of its target.
  std::vector<Function> functions;
};

}  // namespace softgpu::ptx
