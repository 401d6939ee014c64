#include <utility>

#include "softgpu/ptx/module.h"

namespace softgpu::ptx {
namespace {

struct TypeInfo {
  std::string_view name;
  uint32_t size_bytes;
};

// In the order of Type.
constexpr TypeInfo kTypes[] = {
    {"", 0},       {"pred", 1},   {"b8", 1},    {"b16", 2},   {"b32", 4},   {"b64", 8},
    {"b128", 16},  {"u8", 1},     {"u16", 2},   {"u32", 4},   {"u64", 8},   {"s8", 1},
    {"s16", 2},    {"s32", 4},    {"s64", 8},   {"f16", 2},   {"f16x2", 4}, {"bf16", 2},
    {"bf16x2", 4}, {"f32", 4},    {"f64", 8},   {"u16x2", 4}, {"s16x2", 4}, {"tf32", 4},
    {"e4m3x2", 2}, {"e5m2x2", 2}, {"f32x2", 8},
};
static_assert(std::size(kTypes) == static_cast<size_t>(Type::kF32x2) + 1);

}  // namespace

Type type_from_name(std::string_view name) {
  for (size_t i = 1; i < std::size(kTypes); ++i) {
    if (kTypes[i].name == name) return static_cast<Type>(i);
  }
  return Type::kNone;
}

uint32_t size_of(Type type) { return kTypes[static_cast<size_t>(type)].size_bytes; }

}  // namespace softgpu::ptx
