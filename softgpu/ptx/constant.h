// Numbers as written in PTX, and the arithmetic of its constant expressions.
//
// Pure functions and values. An error is returned as false; the parser adds the position.
#pragma once

#include <cstdint>
#include <string_view>

#include "softgpu/ptx/module.h"

namespace softgpu::ptx {

struct Constant {
  enum class Kind : uint8_t { kSigned, kUnsigned, kFloat32, kFloat64 };
  Kind kind = Kind::kSigned;
  uint64_t bits = 0;  // kFloat32: its 32 bits

  bool is_float() const { return kind == Kind::kFloat32 || kind == Kind::kFloat64; }
  double as_double() const;
};

// Reads a number: "42", "42U", "0x2A", "052", "0b101010", "0f3F800000", "0d3FF0000000000000",
// "1.5e3".
bool parse_number(std::string_view text, Constant* result);

enum class Operator : uint8_t {
  kNone,
  kMultiply,
  kDivide,
  kRemainder,
  kAdd,
  kSubtract,
  kShiftLeft,
  kShiftRight,
  kLess,
  kGreater,
  kLessEqual,
  kGreaterEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kXor,
  kOr,
  kLogicalAnd,
  kLogicalOr,
};
// A higher value binds tighter; 0 for kNone.
int precedence(Operator op);

// False for a division by zero, or an operator that floats do not have.
bool apply_unary(char op, Constant* value);
bool apply_binary(Operator op, const Constant& left, const Constant& right, Constant* result);

// The bits of `value` as an element of a variable, converted for float types. For integer types the
// caller truncates them.
uint64_t element_bits(Type type, const Constant& value);

}  // namespace softgpu::ptx
