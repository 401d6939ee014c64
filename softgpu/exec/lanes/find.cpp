// Finds the handler of an instruction, for one instruction set of the processor.
#include "softgpu/exec/lanes/find.h"

#include "softgpu/exec/lanes/handlers.h"

namespace softgpu::exec::SOFTGPU_ISA {
namespace {

using ptx::Type;

bool is_float(Type type) { return type == Type::kF32 || type == Type::kF64; }
bool is_half(Type type) {
  return type == Type::kF16 || type == Type::kF16x2 || type == Type::kBf16 || type == Type::kBf16x2;
}
bool is_packed_integer(Type type) { return type == Type::kU16x2 || type == Type::kS16x2; }

}  // namespace

Handler find_handler(const Form& form) {
  switch (form.op) {
    case Op::kSetp:
    case Op::kSet:
      return find_compare(form);
    case Op::kCvt:
    case Op::kCvtPack:
    case Op::kCvtPair:
      return find_convert(form);
    case Op::kAtom:
    case Op::kRed:
      return find_atomic(form);
    default:
      break;
  }
  if (const Handler h = find_memory(form)) return h;
  if (const Handler h = find_bits(form)) return h;
  if (is_half(form.type)) return find_half(form);
  if (is_packed_integer(form.type)) return find_packed_integer(form);
  if (is_float(form.type)) {
    const Handler h = find_float(form);
    return h != nullptr ? h : find_transcendental(form);
  }
  return find_integer(form);
}

uintptr_t find_comparison(const Form& form) { return comparison_of(form); }

}  // namespace softgpu::exec::SOFTGPU_ISA
