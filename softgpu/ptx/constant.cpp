#include "softgpu/ptx/constant.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

namespace softgpu::ptx {
namespace {

bool parse_digits(std::string_view digits, int base, uint64_t* value) {
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, *value, base);
  return error == std::errc() && stop == end && !digits.empty();
}

Constant from_double(double value) {
  return {Constant::Kind::kFloat64, std::bit_cast<uint64_t>(value)};
}

bool apply_float(Operator op, double a, double b, Constant* result) {
  const auto truth = [result](bool value) {
    *result = {Constant::Kind::kSigned, value};
    return true;
  };
  switch (op) {
    case Operator::kAdd:
      *result = from_double(a + b);
      return true;
    case Operator::kSubtract:
      *result = from_double(a - b);
      return true;
    case Operator::kMultiply:
      *result = from_double(a * b);
      return true;
    case Operator::kDivide:
      *result = from_double(a / b);
      return true;
    case Operator::kLess:
      return truth(a < b);
    case Operator::kGreater:
      return truth(a > b);
    case Operator::kLessEqual:
      return truth(a <= b);
    case Operator::kGreaterEqual:
      return truth(a >= b);
    case Operator::kEqual:
      return truth(a == b);
    case Operator::kNotEqual:
      return truth(a != b);
    default:
      return false;
  }
}

bool divide(bool is_unsigned, bool remainder, uint64_t a, uint64_t b, uint64_t* result) {
  if (b == 0) return false;
  if (is_unsigned) {
    *result = remainder ? a % b : a / b;
  } else if (b == ~0ull) {  // -1: INT64_MIN / -1 would overflow
    *result = remainder ? 0 : 0 - a;
  } else {
    const auto left = static_cast<int64_t>(a), right = static_cast<int64_t>(b);
    *result = static_cast<uint64_t>(remainder ? left % right : left / right);
  }
  return true;
}

}  // namespace

double Constant::as_double() const {
  switch (kind) {
    case Kind::kSigned:
      return static_cast<double>(static_cast<int64_t>(bits));
    case Kind::kUnsigned:
      return static_cast<double>(bits);
    case Kind::kFloat32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case Kind::kFloat64:
      break;
  }
  return std::bit_cast<double>(bits);
}

bool parse_number(std::string_view text, Constant* result) {
  const char marker = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  if (marker == 'f' || marker == 'd') {
    result->kind = marker == 'f' ? Constant::Kind::kFloat32 : Constant::Kind::kFloat64;
    return text.size() == (marker == 'f' ? 10 : 18) &&
           parse_digits(text.substr(2), 16, &result->bits);
  }
  if (marker != 'x' && text.find_first_of(".eE") != std::string_view::npos) {
    double value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::invalid_argument || stop != end) return false;
    if (error == std::errc::result_out_of_range) {  // from_chars leaves value unchanged
      value =
          text.find('-') == std::string_view::npos ? std::numeric_limits<double>::infinity() : 0;
    }
    *result = from_double(value);
    return true;
  }

  result->kind = Constant::Kind::kSigned;
  if (text.back() == 'U') {
    result->kind = Constant::Kind::kUnsigned;
    text.remove_suffix(1);
  }
  if (marker == 'x') return parse_digits(text.substr(2), 16, &result->bits);
  if (marker == 'b') return parse_digits(text.substr(2), 2, &result->bits);
  if (text.size() > 1 && text[0] == '0') return parse_digits(text.substr(1), 8, &result->bits);
  return parse_digits(text, 10, &result->bits);
}

int precedence(Operator op) {
  switch (op) {
    case Operator::kNone:
      return 0;
    case Operator::kLogicalOr:
      return 1;
    case Operator::kLogicalAnd:
      return 2;
    case Operator::kOr:
      return 3;
    case Operator::kXor:
      return 4;
    case Operator::kAnd:
      return 5;
    case Operator::kEqual:
    case Operator::kNotEqual:
      return 6;
    case Operator::kLess:
    case Operator::kGreater:
    case Operator::kLessEqual:
    case Operator::kGreaterEqual:
      return 7;
    case Operator::kShiftLeft:
    case Operator::kShiftRight:
      return 8;
    case Operator::kAdd:
    case Operator::kSubtract:
      return 9;
    case Operator::kMultiply:
    case Operator::kDivide:
    case Operator::kRemainder:
      return 10;
  }
  return 0;
}

bool apply_unary(char op, Constant* value) {
  if (op == '+') return true;
  if (op == '!') {
    *value = {Constant::Kind::kSigned,
              value->is_float() ? value->as_double() == 0 : value->bits == 0};
    return true;
  }
  if (value->is_float()) {
    if (op != '-') return false;
    value->bits ^= value->kind == Constant::Kind::kFloat32 ? 1ull << 31 : 1ull << 63;
    return true;
  }
  value->bits = op == '-' ? 0 - value->bits : ~value->bits;
  return true;
}

bool apply_binary(Operator op, const Constant& left, const Constant& right, Constant* result) {
  if (left.is_float() || right.is_float()) {
    return apply_float(op, left.as_double(), right.as_double(), result);
  }
  const bool is_unsigned =
      left.kind == Constant::Kind::kUnsigned || right.kind == Constant::Kind::kUnsigned;
  const uint64_t a = left.bits, b = right.bits;
  const bool less = is_unsigned ? a < b : static_cast<int64_t>(a) < static_cast<int64_t>(b);
  const bool truth_valued = precedence(op) <= 2 || precedence(op) == 6 || precedence(op) == 7;
  result->kind = is_unsigned && !truth_valued ? Constant::Kind::kUnsigned : Constant::Kind::kSigned;
  switch (op) {
    case Operator::kNone:
      return false;
    case Operator::kMultiply:
      result->bits = a * b;
      return true;
    case Operator::kDivide:
      return divide(is_unsigned, false, a, b, &result->bits);
    case Operator::kRemainder:
      return divide(is_unsigned, true, a, b, &result->bits);
    case Operator::kAdd:
      result->bits = a + b;
      return true;
    case Operator::kSubtract:
      result->bits = a - b;
      return true;
    case Operator::kShiftLeft:
      result->bits = b > 63 ? 0 : a << b;
      return true;
    case Operator::kShiftRight: {
      const bool negative = left.kind == Constant::Kind::kSigned && static_cast<int64_t>(a) < 0;
      result->kind = left.kind;
      if (b > 63) {
        result->bits = negative ? ~0ull : 0;
      } else {
        result->bits = negative ? ~(~a >> b) : a >> b;
      }
      return true;
    }
    case Operator::kLess:
      result->bits = less;
      return true;
    case Operator::kGreater:
      result->bits = !less && a != b;
      return true;
    case Operator::kLessEqual:
      result->bits = less || a == b;
      return true;
    case Operator::kGreaterEqual:
      result->bits = !less;
      return true;
    case Operator::kEqual:
      result->bits = a == b;
      return true;
    case Operator::kNotEqual:
      result->bits = a != b;
      return true;
    case Operator::kAnd:
      result->bits = a & b;
      return true;
    case Operator::kXor:
      result->bits = a ^ b;
      return true;
    case Operator::kOr:
      result->bits = a | b;
      return true;
    case Operator::kLogicalAnd:
      result->bits = a != 0 && b != 0;
      return true;
    case Operator::kLogicalOr:
      result->bits = a != 0 || b != 0;
      return true;
  }
  return false;
}

uint64_t element_bits(Type type, const Constant& value) {
  if (type == Type::kF64 || (size_of(type) == 8 && value.is_float())) {
    return std::bit_cast<uint64_t>(value.as_double());
  }
  if (type == Type::kF32 || (size_of(type) == 4 && value.is_float())) {
    // The float's own bits. A conversion through double would quieten a NaN.
    if (value.kind == Constant::Kind::kFloat32) return value.bits;
    return std::bit_cast<uint32_t>(static_cast<float>(value.as_double()));
  }
  return value.bits;
}

}  // namespace softgpu::ptx
