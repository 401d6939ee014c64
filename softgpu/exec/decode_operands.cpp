// Reads operands according to a pattern's signature. The roles:
//   d a      a register of the type's width (d: written); a may also be an immediate, a special
//            register or, for mov and cvta, the address of a variable
//   dw aw    of twice the width;  d32 a32 d64 a64: of 32 or 64 bits;  a2: the second type's width
//   dx ax    any width not smaller than the type (cvt)
//   p  p|    a predicate; p| may be a pair p|q.  d|p d32|p: a register and perhaps a predicate
//   n  n!    a predicate that is read; n! may be negated
//   m m2 m3  addresses in brackets
//   v  vs    one register or a vector of registers of any width not smaller than the type, written
//            (v) or read (vs)
//   i        an immediate
// Destinations are Slots d, d2 and sources a, b, c, e of the instruction, in order.
#include <bit>
#include <cstring>

#include "softgpu/exec/decoder.h"

namespace softgpu::exec {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

namespace {

struct SpecialName {
  std::string_view name;
  uint32_t which;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", kTidX},
    {"%tid.y", kTidY},
    {"%tid.z", kTidZ},
    {"%ntid.x", kNtidX},
    {"%ntid.y", kNtidY},
    {"%ntid.z", kNtidZ},
    {"%ctaid.x", kCtaidX},
    {"%ctaid.y", kCtaidY},
    {"%ctaid.z", kCtaidZ},
    {"%nctaid.x", kNctaidX},
    {"%nctaid.y", kNctaidY},
    {"%nctaid.z", kNctaidZ},
    {"%laneid", kLaneId},
    {"%warpid", kWarpId},
    {"%nwarpid", kNumWarps},
    {"%smid", kSmId},
    {"%nsmid", kNumSms},
    {"%gridid", kGridId},
    {"%lanemask_eq", kLaneMaskEq},
    {"%lanemask_le", kLaneMaskLe},
    {"%lanemask_lt", kLaneMaskLt},
    {"%lanemask_ge", kLaneMaskGe},
    {"%lanemask_gt", kLaneMaskGt},
    {"%dynamic_smem_size", kDynamicSharedSize},
    {"%total_smem_size", kTotalSharedSize},
    {"%aggr_smem_size", kTotalSharedSize},
    {"%envreg1", kEnvReg1},
    {"%envreg2", kEnvReg2},
    // A cluster is one block.
    {"%clusterid.x", kCtaidX},
    {"%clusterid.y", kCtaidY},
    {"%clusterid.z", kCtaidZ},
    {"%nclusterid.x", kNctaidX},
    {"%nclusterid.y", kNctaidY},
    {"%nclusterid.z", kNctaidZ},
    {"%cluster_ctaid.x", kZero},
    {"%cluster_ctaid.y", kZero},
    {"%cluster_ctaid.z", kZero},
    {"%cluster_nctaid.x", kOne},
    {"%cluster_nctaid.y", kOne},
    {"%cluster_nctaid.z", kOne},
    {"%cluster_ctarank", kZero},
    {"%cluster_nctarank", kOne},
};

}  // namespace

Op dynamic_special(std::string_view name) {
  if (name == "%clock") return Op::kClock;
  if (name == "%clock64") return Op::kClock64;
  if (name == "%clock_hi") return Op::kClockHi;
  if (name == "%globaltimer") return Op::kGlobalTimer;
  if (name == "%globaltimer_lo") return Op::kGlobalTimerLo;
  if (name == "%globaltimer_hi") return Op::kGlobalTimerHi;
  return Op::kNone;
}

uint32_t Decoder::register_bytes(uint32_t index) const {
  const uint32_t bytes = ptx::size_of(source_.registers[index].type);
  return bytes == 1 ? 2 : bytes;  // 8-bit registers are stored in 16 bits
}

bool Decoder::destination(const Operand& operand, uint32_t bytes, Slot* slot) {
  if (operand.kind == Operand::Kind::kSink) {
    *slot = Slot();
    return true;
  }
  if (operand.kind != Operand::Kind::kRegister || operand.negated || !operand.name.empty())
    return false;
  if (source_.registers[operand.index].type == Type::kPred) return false;
  if (register_bytes(operand.index) != bytes) return false;
  *slot = register_slot(operand.index);
  return true;
}

bool Decoder::predicate_destination(const Operand& operand, Slot* slot) {
  if (operand.kind == Operand::Kind::kSink) {
    *slot = Slot();
    return true;
  }
  if (operand.kind != Operand::Kind::kRegister || operand.negated) return false;
  if (source_.registers[operand.index].type != Type::kPred) return false;
  *slot = register_slot(operand.index);
  return true;
}

bool Decoder::special(std::string_view name, uint32_t bytes, Slot* slot) {
  if (name == "WARP_SZ") {
    *slot = constant(kLanes, bytes);
    return true;
  }
  for (const SpecialName& s : kSpecials) {
    if (s.name != name) continue;
    if (bytes != (s.which == kGridId ? 8u : 4u)) return false;
    *slot = Slot(Bank::kSpecial, special_offset(s.which));
    return true;
  }
  const bool constant_zero = name.starts_with("%envreg") || name.starts_with("%pm") ||
                             name.starts_with("%reserved_smem_offset") ||
                             name == "%current_graph_exec";
  if (!constant_zero) return false;
  *slot = constant(0, bytes);
  return true;
}

bool Decoder::source(const Operand& operand, uint32_t bytes, Type type, Slot* slot) {
  if (operand.negated || (operand.kind == Operand::Kind::kRegister && !operand.name.empty()))
    return false;
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      if (source_.registers[operand.index].type == Type::kPred) return false;
      if (register_bytes(operand.index) != bytes) return false;
      *slot = register_slot(operand.index);
      return true;
    case Operand::Kind::kImmediate: {
      uint64_t bits = operand.bits;
      const auto value = static_cast<int64_t>(bits);
      if (type == Type::kF32) bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      if (type == Type::kF64) bits = std::bit_cast<uint64_t>(static_cast<double>(value));
      *slot = constant(bits, bytes);
      return true;
    }
    case Operand::Kind::kFloat32:
      if (type == Type::kF64) {
        const float value = std::bit_cast<float>(static_cast<uint32_t>(operand.bits));
        *slot = constant(std::bit_cast<uint64_t>(static_cast<double>(value)), 8);
        return true;
      }
      if (bytes != 4) return false;
      *slot = constant(operand.bits, 4);
      return true;
    case Operand::Kind::kFloat64:
      if (type == Type::kF32) {
        const double value = std::bit_cast<double>(operand.bits);
        *slot = constant(std::bit_cast<uint32_t>(static_cast<float>(value)), 4);
        return true;
      }
      if (bytes != 8) return false;
      *slot = constant(operand.bits, 8);
      return true;
    case Operand::Kind::kSpecial:
      return special(operand.name, bytes, slot);
    default:
      return false;
  }
}

bool Decoder::predicate_source(const Operand& operand, bool may_negate, Slot* slot, bool* negated) {
  if (operand.negated && !may_negate) return false;
  *negated = operand.negated;
  if (operand.kind == Operand::Kind::kImmediate) {
    *slot = constant(operand.bits != 0 ? kFullMask : 0, 4);
    return true;
  }
  if (operand.kind != Operand::Kind::kRegister) return false;
  if (source_.registers[operand.index].type != Type::kPred) return false;
  *slot = register_slot(operand.index);
  return true;
}

bool Decoder::vector(const Operand& operand, bool is_source, Form& form, Operands* out) {
  const bool braces = operand.kind == Operand::Kind::kVector;
  const size_t count = braces ? operand.elements.size() : 1;
  if (count != form.elements) return false;
  uint32_t bytes = 0;  // width of the registers
  for (size_t k = 0; k < count; ++k) {
    const Operand& element = braces ? operand.elements[k] : operand;
    if (element.kind != Operand::Kind::kRegister) continue;
    if (bytes != 0 && register_bytes(element.index) != bytes) return false;
    bytes = register_bytes(element.index);
  }
  const uint32_t width = ptx::size_of(form.type);
  if (bytes == 0) bytes = width == 1 ? 2 : width;
  if (bytes < width) return false;
  // The two vectors of an atomic must have registers of the same width.
  if (form.d_bytes != 0 && form.d_bytes != bytes) return false;
  form.d_bytes = static_cast<uint8_t>(bytes);
  for (size_t k = 0; k < count; ++k) {
    const Operand& element = braces ? operand.elements[k] : operand;
    Slot slot;
    const bool good =
        is_source ? source(element, bytes, form.type, &slot) : destination(element, bytes, &slot);
    if (!good) return false;
    out->list.push_back(slot);
  }
  return true;
}

bool Decoder::read_operand(const Operand& operand, std::string_view role, Form& form,
                           Operands* out) {
  const uint32_t width = ptx::size_of(form.type);
  const auto add_destination = [&](const Operand& o, uint32_t bytes) {
    return destination(o, bytes, &out->destinations.emplace_back());
  };
  const auto add_predicate = [&](const Operand& o) {
    return predicate_destination(o, &out->destinations.emplace_back());
  };
  const auto add_source = [&](uint32_t bytes, Type type) {
    return source(operand, bytes, type, &out->sources.emplace_back());
  };
  const auto add_pair = [&](auto first) {
    if (operand.kind != Operand::Kind::kPair) return first(operand);
    out->paired = true;
    return first(operand.elements[0]) && add_predicate(operand.elements[1]);
  };
  const bool is_predicate = form.type == Type::kPred;

  if (role == "d") return is_predicate ? add_predicate(operand) : add_destination(operand, width);
  if (role == "d32") return add_destination(operand, 4);
  if (role == "d64") return add_destination(operand, 8);
  if (role == "dw") return add_destination(operand, 2 * width);
  if (role == "dx") {
    if (operand.kind != Operand::Kind::kRegister) return false;
    form.d_bytes = static_cast<uint8_t>(register_bytes(operand.index));
    return form.d_bytes >= width && add_destination(operand, form.d_bytes);
  }
  if (role == "p") return add_predicate(operand);
  if (role == "p|") return add_pair(add_predicate);
  if (role == "d|p") return add_pair([&](const Operand& o) { return add_destination(o, width); });
  if (role == "d32|p") return add_pair([&](const Operand& o) { return add_destination(o, 4); });

  if (role == "a") {
    if (!is_predicate) return add_source(width, form.type);
    bool negated = false;
    return predicate_source(operand, false, &out->sources.emplace_back(), &negated);
  }
  if (role == "aw") return add_source(2 * width, Type::kNone);
  if (role == "a32") return add_source(4, Type::kNone);
  if (role == "a64") return add_source(8, Type::kNone);
  if (role == "a2") return add_source(ptx::size_of(form.type2), form.type2);
  if (role == "ax") {
    const uint32_t needed = ptx::size_of(form.type2);
    uint32_t bytes = needed == 1 ? 2 : needed;
    if (operand.kind == Operand::Kind::kRegister) bytes = register_bytes(operand.index);
    form.a_bytes = static_cast<uint8_t>(bytes);
    return bytes >= needed && add_source(bytes, form.type2);
  }
  if (role == "n" || role == "n!") {
    return predicate_source(operand, role == "n!", &out->sources.emplace_back(),
                            &out->negated_predicate);
  }
  if (role == "m" || role == "m2" || role == "m3") {
    if (operand.kind != Operand::Kind::kAddress || operand.elements.size() != 1) return false;
    out->addresses[role == "m" ? 0 : role == "m2" ? 1 : 2] = &operand;
    return true;
  }
  if (role == "v" || role == "vs") return vector(operand, role == "vs", form, out);
  if (role == "i") {
    if (operand.kind != Operand::Kind::kImmediate) return false;
    out->immediates.push_back(static_cast<int64_t>(operand.bits));
    return true;
  }
  return false;
}

bool Decoder::read_operands(const ptx::Instruction& source, const Pattern& pattern, Form& form,
                            Operands* out) {
  std::string_view roles = pattern.operands;
  size_t at = 0;
  while (!roles.empty()) {
    std::string_view role = roles.substr(0, roles.find(' '));
    roles.remove_prefix(std::min(roles.size(), role.size() + 1));
    const bool optional = role.ends_with('?');
    if (optional) role.remove_suffix(1);
    if (at == source.operands.size()) {
      if (optional) continue;
      return false;
    }
    if (!read_operand(source.operands[at], role, form, out)) return false;
    ++at;
  }
  return at == source.operands.size();
}

bool Decoder::address_value(const Operand& operand, uint64_t* value, bool* frame_relative) {
  *frame_relative = false;
  if (operand.kind == Operand::Kind::kVariable) {
    const ptx::Variable& variable = source_.variables[operand.index];
    switch (variable.space) {
      case Space::kShared:
        *value = variable.size_bytes == 0 ? linker_.dynamic_shared_offset()
                                          : linker_.shared_offset(source_, operand.index);
        out_.names_dynamic_shared |= variable.size_bytes == 0;
        break;
      case Space::kParam:
        if (source_.is_entry && operand.index < source_.parameters.size()) {
          *value = source_.parameters[operand.index].offset_bytes;
          break;
        }
        [[fallthrough]];
      case Space::kLocal:
        *value = local_offset_[operand.index];
        *frame_relative = true;
        break;
      default:
        return false;
    }
  } else {
    const Symbol symbol = find_symbol(operand.name);
    switch (symbol.kind) {
      case Symbol::Kind::kAddress:
        *value = symbol.value;
        break;
      case Symbol::Kind::kShared:
        *value = symbol.value;
        out_.shared_symbols.push_back(symbol.shared_index);
        break;
      case Symbol::Kind::kDynamicShared:
        *value = linker_.dynamic_shared_offset();
        out_.names_dynamic_shared = true;
        break;
      case Symbol::Kind::kFunction:
        *value = kFunctionWindow + 16 * (symbol.value + 1);
        out_.takes_address_of.push_back(static_cast<uint32_t>(symbol.value));
        break;
      default:
        return false;
    }
  }
  *value += static_cast<uint64_t>(operand.offset);
  return true;
}

bool Decoder::address(const Operand& operand, Space space, Slot* base, int64_t* offset,
                      uint8_t* flags, Space* actual) {
  const Operand& element = operand.elements[0];
  *actual = space;
  *offset = operand.offset;
  switch (element.kind) {
    case Operand::Kind::kRegister: {
      const uint32_t bytes = register_bytes(element.index);
      if (source_.registers[element.index].type == Type::kPred || (bytes != 4 && bytes != 8))
        return false;
      *base = register_slot(element.index);
      if (bytes == 4) *flags |= kAddress32;
      if (space == Space::kParam && !source_.is_entry) *actual = Space::kLocal;
      return true;
    }
    case Operand::Kind::kImmediate:
      *base = constant(0, 8);
      *offset += static_cast<int64_t>(element.bits);
      return true;
    case Operand::Kind::kVariable:
    case Operand::Kind::kSymbol: {
      uint64_t value = 0;
      bool frame_relative = false;
      if (!address_value(element, &value, &frame_relative)) return false;
      Space where = Space::kGlobal;
      if (element.kind == Operand::Kind::kVariable) {
        where = frame_relative ? Space::kLocal : source_.variables[element.index].space;
      } else if (const Symbol symbol = find_symbol(element.name);
                 symbol.kind == Symbol::Kind::kShared ||
                 symbol.kind == Symbol::Kind::kDynamicShared) {
        where = Space::kShared;
      }
      const bool is_global = space == Space::kGlobal || space == Space::kConst;
      const bool fits = space == Space::kGeneric || where == space ||
                        (where == Space::kGlobal && is_global) ||
                        (where == Space::kLocal && space == Space::kParam);
      if (!fits) return false;
      *actual = where;
      *base = constant(0, 8);
      *offset += static_cast<int64_t>(value);
      if (frame_relative) *flags |= kFrameRelative;
      return true;
    }
    default:
      return false;
  }
}

}  // namespace softgpu::exec
