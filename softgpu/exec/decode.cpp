#include "softgpu/exec/decode.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "softgpu/exec/decoder.h"
#include "softgpu/exec/system.h"

namespace softgpu::exec {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

namespace {

bool is_integer(Type type) {
  switch (type) {
    case Type::kU8:
    case Type::kU16:
    case Type::kU32:
    case Type::kU64:
    case Type::kS8:
    case Type::kS16:
    case Type::kS32:
    case Type::kS64:
      return true;
    default:
      return false;
  }
}

// Whether the rounding modifier fits the types, by the rules of PTX:
//   integer to integer  no rounding
//   float to integer    an integer rounding
//   integer to float    a floating-point rounding
//   float to float      a floating-point rounding if precision may be lost; an integer rounding or
//                       none if both types are the same; otherwise none
bool rounding_fits(const Form& form) {
  const bool to_integer = is_integer(form.type);
  const bool from_integer = is_integer(form.type2);
  const bool has_float_rounding = form.rounding != Rounding::kNone && !form.round_to_integer;
  if (form.rounding == Rounding::kNearestAway) return false;
  const bool bytes = ptx::size_of(form.type) == 1 || ptx::size_of(form.type2) == 1;
  if (bytes && (form.type == Type::kBf16 || form.type2 == Type::kBf16)) return false;
  if (to_integer && from_integer) return form.rounding == Rounding::kNone && !form.ftz;
  if (to_integer) return form.round_to_integer;
  if (from_integer) return has_float_rounding;
  const uint32_t to = ptx::size_of(form.type);
  const uint32_t from = ptx::size_of(form.type2);
  if (to < from || (to == from && form.type != form.type2)) return has_float_rounding;
  if (form.type == form.type2) return form.round_to_integer || form.rounding == Rounding::kNone;
  return form.rounding == Rounding::kNone;
}

// Replaces gt by lt and ge by le, ordered or unordered. Returns true if it has replaced one: the
// caller then exchanges the operands.
bool exchange_comparison(Compare* compare) {
  switch (*compare) {
    case Compare::kGt:
      *compare = Compare::kLt;
      return true;
    case Compare::kGe:
      *compare = Compare::kLe;
      return true;
    case Compare::kGtu:
      *compare = Compare::kLtu;
      return true;
    case Compare::kGeu:
      *compare = Compare::kLeu;
      return true;
    default:
      return false;
  }
}

uint8_t half_options(const Form& form) {
  return static_cast<uint8_t>((form.ftz ? 1 : 0) | (form.saturate ? 2 : 0) | (form.relu ? 4 : 0));
}
bool is_half(Type type) {
  return type == Type::kF16 || type == Type::kF16x2 || type == Type::kBf16 || type == Type::kBf16x2;
}

}  // namespace

Decoder::Decoder(const Linker& linker, uint32_t index,
                 const std::vector<std::unique_ptr<Function>>& functions)
    : linker_(linker),
      where_(linker.functions()[index]),
      source_(*where_.source),
      functions_(functions),
      out_(*functions[index]) {}

rcuda::Status Decoder::run() {
  out_.name = std::string(source_.name);
  out_.is_entry = source_.is_entry;
  // .blocksareclusters and .explicitcluster have no effect as long as a cluster is one block.
  const auto& cluster = source_.required_cluster;
  if (cluster[0] > 1 || cluster[1] > 1 || cluster[2] > 1) {
    refuse(".reqnctapercluster " + std::to_string(cluster[0]) + ", " + std::to_string(cluster[1]) +
               ", " + std::to_string(cluster[2]),
           0);
  }
  RCUDA_RETURN_IF_ERROR(lay_out_registers());
  lay_out_locals();
  out_.branch_tables = source_.branch_tables;
  out_.code.resize(source_.code.size() + 1);
  for (size_t k = 0; k < source_.code.size(); ++k) {
    decode_instruction(source_.code[k], &out_.code[k]);
  }
  Instr& end = out_.code.back();
  end.flow = Flow::kReturn;
  end.line = source_.code.empty() ? 0 : source_.code.back().line;
  RCUDA_RETURN_IF_ERROR(write_constants());
  if (!missing_symbol_.empty()) {
    return {rcuda::Code::kNotFound, "unresolved symbol '" + missing_symbol_ + "'"};
  }
  return {};
}

Symbol Decoder::find_symbol(std::string_view name) {
  const Symbol symbol = linker_.find(where_.unit, name);
  if (symbol.kind == Symbol::Kind::kMissing && missing_symbol_.empty())
    missing_symbol_ = std::string(name);
  return symbol;
}

void Decoder::decode_instruction(const ptx::Instruction& source, Instr* out) {
  for (const Pattern* p = next_match(source, nullptr); p != nullptr; p = next_match(source, p)) {
    *out = Instr();
    out->line = source.line;
    if (source.guard) {
      out->guard = register_offset_[source.guard->reg];
      if (source.guard->negated) out->flags |= kGuardNegated;
    }
    if (try_pattern(source, *p, out)) return;
  }
  *out = Instr();
  out->line = source.line;
  out->flow = Flow::kUnsupported;
  refuse(full_name(source), source.line);
}

// Records a feature that this function needs and the interpreter lacks. `line`: 0 unless the
// feature is an instruction.
void Decoder::refuse(const std::string& what, uint32_t line) {
  if (out_.unsupported.empty()) {
    out_.unsupported = line == 0 ? what : what + " at line " + std::to_string(line);
  }
  auto& names = out_.unsupported_names;
  if (std::find(names.begin(), names.end(), what) == names.end()) names.push_back(what);
}

bool Decoder::try_pattern(const ptx::Instruction& source, const Pattern& pattern, Instr* out) {
  bool handled = false;
  const bool good = decode_control(source, pattern, out, &handled);
  if (handled) return good;
  if (pattern.op == Op::kMov) {
    const bool moved = decode_mov(source, out, &handled);
    if (handled) return moved;
  }
  Form form = form_of(source, pattern.op);
  Operands operands;
  // cvta of a variable is a mov of the variable's generic address.
  if ((pattern.op == Op::kCvta || pattern.op == Op::kCvtaTo) && source.operands.size() == 2 &&
      (source.operands[1].kind == Operand::Kind::kSymbol ||
       source.operands[1].kind == Operand::Kind::kVariable)) {
    uint64_t value = 0;
    bool frame_relative = false;
    if (!destination(source.operands[0], 8, &out->d)) return false;
    if (!address_value(source.operands[1], &value, &frame_relative)) return false;
    if (pattern.op == Op::kCvta) value += window_of(form.space, frame_relative);
    form.d_bytes = 8;
    form.op = frame_relative ? Op::kLocalAddress : Op::kMov;
    out->a = constant(value, 8);
    out->imm = static_cast<int64_t>(value);
    out->handler = instruction_set().find(form);
    return out->handler != nullptr;
  }
  return read_operands(source, pattern, form, &operands) && assemble(source, form, operands, out);
}

bool Decoder::decode_mov(const ptx::Instruction& source, Instr* out, bool* handled) {
  if (source.operands.size() != 2) return false;
  const Operand& d = source.operands[0];
  const Operand& a = source.operands[1];
  Form form = form_of(source, Op::kMov);
  const uint32_t whole = ptx::size_of(form.type);
  *handled = true;

  if (a.kind == Operand::Kind::kVector || d.kind == Operand::Kind::kVector) {
    const bool pack = a.kind == Operand::Kind::kVector;
    const Operand& vector = pack ? a : d;
    const auto parts = static_cast<uint32_t>(vector.elements.size());
    if ((parts != 2 && parts != 4) || whole % parts != 0 || form.type == Type::kPred) return false;
    const uint32_t part = whole / parts;
    form.op = pack ? Op::kPack : Op::kUnpack;
    form.a_bytes = form.d_bytes = static_cast<uint8_t>(part);
    Slot slots[4];
    for (uint32_t k = 0; k < parts; ++k) {
      const bool good = pack ? this->source(vector.elements[k], part, Type::kNone, &slots[k])
                             : destination(vector.elements[k], part, &slots[k]);
      if (!good) return false;
    }
    if (pack) {
      if (!destination(d, whole, &out->d)) return false;
      out->a = slots[0], out->b = slots[1], out->c = slots[2], out->e = slots[3];
    } else {
      if (!this->source(a, whole, Type::kNone, &out->a)) return false;
      out->d = slots[0], out->d2 = slots[1], out->b = slots[2], out->c = slots[3];
    }
    out->handler = instruction_set().find(form);
    return out->handler != nullptr;
  }

  if (a.kind == Operand::Kind::kSymbol || a.kind == Operand::Kind::kVariable) {
    uint64_t value = 0;
    bool frame_relative = false;
    if ((whole != 4 && whole != 8) || !destination(d, whole, &out->d)) return false;
    if (!address_value(a, &value, &frame_relative)) return false;
    form.op = frame_relative ? Op::kLocalAddress : Op::kMov;
    form.d_bytes = static_cast<uint8_t>(whole);
    out->a = constant(value, whole);
    out->imm = static_cast<int64_t>(value);
    out->handler = instruction_set().find(form);
    return out->handler != nullptr;
  }

  if (a.kind == Operand::Kind::kSpecial && dynamic_special(a.name) != Op::kNone) {
    const Op op = dynamic_special(a.name);
    const bool wide = op == Op::kClock64 || op == Op::kGlobalTimer;
    // %clock64 may be read into 64 bits only, %clock into 32 bits only.
    if (whole != (wide ? 8u : 4u) || !destination(d, whole, &out->d)) return false;
    out->handler = system_handler(op);
    return true;
  }
  *handled = false;
  return true;
}

bool Decoder::assemble(const ptx::Instruction& source, Form& form, const Operands& operands,
                       Instr* out) {
  switch (form.op) {
    case Op::kLd:
    case Op::kSt:
    case Op::kLdMatrix:
    case Op::kStMatrix:
    case Op::kAtom:
    case Op::kRed:
    case Op::kCpAsync:
      return assemble_memory(source, form, operands, out);
    case Op::kMbarrier:
      return assemble_barrier_object(source, form, operands, out);
    case Op::kBarWarp:
    case Op::kVote:
    case Op::kShfl:
    case Op::kMatch:
    case Op::kRedux:
    case Op::kElect:
      return assemble_collective(source, form, operands, out);
    default:
      break;
  }
  Slot* const destinations[] = {&out->d, &out->d2};
  Slot* const sources[] = {&out->a, &out->b, &out->c, &out->e};
  if (operands.destinations.size() > std::size(destinations) ||
      operands.sources.size() > std::size(sources)) {
    return false;
  }
  for (size_t k = 0; k < operands.destinations.size(); ++k)
    *destinations[k] = operands.destinations[k];
  for (size_t k = 0; k < operands.sources.size(); ++k) *sources[k] = operands.sources[k];
  if (operands.negated_predicate) out->flags |= kNegateC;

  out->sub = static_cast<uint8_t>(form.rounding);
  if (is_half(form.type)) out->sub = half_options(form);
  switch (form.op) {
    case Op::kSetp:
    case Op::kSet: {
      const bool pairs = ptx::size_of(form.type) == 4 && is_half(form.type);  // setp.f16x2
      if (form.op == Op::kSetp && pairs && !operands.paired) return false;
      if (exchange_comparison(&form.compare)) std::swap(out->a, out->b);
      form.elements = operands.paired ? 2 : 1;
      out->sub = static_cast<uint8_t>(form.combine);
      out->imm = static_cast<int64_t>(instruction_set().comparison(form));
      if (out->imm == 0) return false;
      break;
    }
    case Op::kCvt:
      if (form.type != Type::kTf32 && !rounding_fits(form)) return false;
      [[fallthrough]];
    case Op::kCvtPair:
    case Op::kCvtPack: {
      const Conversion how{
          form.type,
          form.type2,
          form.d_bytes != 0 ? form.d_bytes : static_cast<uint8_t>(ptx::size_of(form.type)),
          form.a_bytes != 0 ? form.a_bytes : static_cast<uint8_t>(ptx::size_of(form.type2)),
          form.rounding,
          form.round_to_integer,
          form.ftz,
          form.saturate,
          form.relu,
          0};
      std::memcpy(&out->imm, &how, sizeof how);
      break;
    }
    case Op::kTestp: {
      constexpr std::string_view kTests[] = {"finite",     "infinite", "number",
                                             "notanumber", "normal",   "subnormal"};
      out->sub = static_cast<uint8_t>(
          std::find(std::begin(kTests), std::end(kTests), source.modifiers[0]) -
          std::begin(kTests));
      break;
    }
    case Op::kLop3:
      out->imm = operands.immediates[0];
      if (out->imm < 0 || out->imm > 255) return false;
      break;
    case Op::kCvta:
      out->imm = static_cast<int64_t>(window_of(form.space, !source_.is_entry));
      break;
    case Op::kCvtaTo:
      out->imm = -static_cast<int64_t>(window_of(form.space, !source_.is_entry));
      break;
    case Op::kIsspacep:
      // Constant memory has no window, because it lies among the globals. isspacep.const is false
      // for all memory: it tests for the window of functions, which contains no memory.
      out->imm = form.space == Space::kConst
                     ? static_cast<int64_t>(kFunctionWindow)
                     : static_cast<int64_t>(window_of(form.space, !source_.is_entry));
      break;
    case Op::kMin:
    case Op::kMax:
      if (operands.sources.size() == 3) form.elements = 3;
      break;
    case Op::kNop:
      out->handler = system_handler(Op::kNop);
      return true;
    case Op::kFence:
    case Op::kNanosleep:
    case Op::kActiveMask:
      out->handler = system_handler(form.op);
      return true;
    case Op::kTrap:
      out->flow = Flow::kFaulting;
      out->handler = system_handler(form.op);
      return true;
    default:
      break;
  }
  out->handler = instruction_set().find(form);
  return out->handler != nullptr;
}

bool Decoder::assemble_memory(const ptx::Instruction& source, Form& form, const Operands& operands,
                              Instr* out) {
  out->flow = Flow::kFaulting;
  if (form.op == Op::kCpAsync && has_modifier(source, "bulk")) {
    return assemble_bulk_copy(source, operands, out);
  }
  out->count = form.elements;
  Space actual = form.space;
  if (!address(*operands.addresses[0], form.space, &out->a, &out->imm, &out->flags, &actual))
    return false;
  // Constant memory is addressed like global memory.
  out->sub = static_cast<uint8_t>(actual == Space::kConst ? Space::kGlobal : actual);

  if (form.op == Op::kCpAsync) {
    Slot from;
    int64_t from_offset = 0;
    uint8_t from_flags = 0;
    Space from_space = Space::kGlobal;
    if (!address(*operands.addresses[1], Space::kGlobal, &from, &from_offset, &from_flags,
                 &from_space))
      return false;
    const int64_t size = operands.immediates[0];
    const bool size_fits = size == 16 || (has_modifier(source, "ca") && (size == 4 || size == 8));
    if (!size_fits || from_flags != 0 || from_space != Space::kGlobal) return false;
    if (out->imm != static_cast<int32_t>(out->imm)) return false;
    if (from_offset != static_cast<int32_t>(from_offset)) {  // it is a global's whole address
      if (from == constant(0, 8))
        from = constant(static_cast<uint64_t>(from_offset), 8), from_offset = 0;
      else
        return false;
    }
    out->imm = (out->imm & 0xffffffff) | from_offset << 32;
    out->b = from;
    out->c =
        !operands.sources.empty() ? operands.sources[0] : constant(static_cast<uint64_t>(size), 4);
    out->count = static_cast<uint8_t>(size);
    out->handler = instruction_set().find(form);
    return out->handler != nullptr;
  }

  if (!operands.destinations.empty()) out->d = operands.destinations[0];
  const bool is_matrix = form.op == Op::kLdMatrix || form.op == Op::kStMatrix;
  if (is_matrix && has_modifier(source, "trans")) out->flags |= kTransposed;
  if (is_matrix && form.d_bytes != 4) return false;
  if (form.op == Op::kAtom || form.op == Op::kRed) {
    if (form.elements > 1) {
      std::vector<Slot> list = operands.list;
      if (form.op == Op::kRed) list.insert(list.begin(), form.elements, Slot());
      if (form.d_bytes != ptx::size_of(form.type)) return false;
      out->target = static_cast<uint32_t>(out_.lists.size());
      out_.lists.insert(out_.lists.end(), list.begin(), list.end());
    } else {
      const size_t needed = form.atomic == AtomicOp::kCas ? 2 : 1;
      if (operands.sources.size() < needed) return false;
      out->b = operands.sources[0];
      if (needed == 2) out->c = operands.sources[1];
    }
  } else if (form.elements > 1 || is_matrix) {
    if (ptx::size_of(form.type) * form.elements > 32) return false;
    out->target = static_cast<uint32_t>(out_.lists.size());
    out_.lists.insert(out_.lists.end(), operands.list.begin(), operands.list.end());
  } else {
    (form.op == Op::kLd ? out->d : out->b) = operands.list[0];
  }
  out->handler = instruction_set().find(form);
  return out->handler != nullptr;
}

// Instr::imm: the offsets of the destination (low half) and the source (high half). Instr::target:
// the offset of the barrier.
bool Decoder::assemble_bulk_copy(const ptx::Instruction& source, const Operands& operands,
                                 Instr* out) {
  const auto space_named = [&](size_t k) {
    return source.modifiers[k] == "global" ? Space::kGlobal : Space::kShared;
  };
  const Space to = space_named(2), from = space_named(3);
  Slot* const bases[] = {&out->a, &out->b, &out->e};
  const Space spaces[] = {to, from, Space::kShared};
  int64_t offsets[3] = {};
  BulkCopy how{};
  for (int k = 0; k < 3; ++k) {
    if (operands.addresses[k] == nullptr) continue;
    uint8_t flags = 0;
    Space actual = spaces[k];
    if (!address(*operands.addresses[k], spaces[k], bases[k], &offsets[k], &flags, &actual) ||
        actual != spaces[k] || (flags & kFrameRelative) != 0) {
      return false;
    }
    if (offsets[k] != static_cast<int32_t>(offsets[k])) {  // it is a global's whole address
      *bases[k] = constant(static_cast<uint64_t>(offsets[k]), 8);
      offsets[k] = 0;
    }
    if ((flags & kAddress32) != 0) how.narrow |= static_cast<uint8_t>(1 << k);
  }
  how.to_global = to == Space::kGlobal;
  how.from_global = from == Space::kGlobal;
  how.has_barrier = operands.addresses[2] != nullptr;
  out->imm =
      (offsets[0] & 0xffffffff) | static_cast<int64_t>(static_cast<uint64_t>(offsets[1]) << 32);
  out->target = static_cast<uint32_t>(offsets[2]);
  out->c = operands.sources[0];
  std::memcpy(&out->sub, &how, sizeof how);
  out->handler = bulk_copy_handler();
  return true;
}

bool Decoder::assemble_barrier_object(const ptx::Instruction& source, const Form& form,
                                      const Operands& operands, Instr* out) {
  constexpr std::pair<std::string_view, BarrierOp> kOps[] = {
      {"init", BarrierOp::kInit},
      {"inval", BarrierOp::kInval},
      {"arrive", BarrierOp::kArrive},
      {"arrive_drop", BarrierOp::kArriveDrop},
      {"test_wait", BarrierOp::kTestWait},
      {"try_wait", BarrierOp::kTryWait},
      {"pending_count", BarrierOp::kPending},
      {"expect_tx", BarrierOp::kExpectTx},
      {"complete_tx", BarrierOp::kCompleteTx},
      {"async", BarrierOp::kCpAsyncArrive},
  };
  BarrierOp op = BarrierOp::kInit;
  for (const auto& [name, value] : kOps) {
    if (source.modifiers[0] == name) op = value;
  }
  out->flow = Flow::kFaulting;
  if (operands.addresses[0] != nullptr) {
    Space actual = form.space;
    if (!address(*operands.addresses[0], form.space, &out->a, &out->imm, &out->flags, &actual))
      return false;
    out->sub = static_cast<uint8_t>(actual);
  }
  if (!operands.destinations.empty()) out->d = operands.destinations[0];
  if (!operands.sources.empty()) {
    out->b = operands.sources[0];
  } else if (op == BarrierOp::kArrive || op == BarrierOp::kArriveDrop) {
    out->b = constant(1, 4);
  }
  const bool with_expect = op != BarrierOp::kExpectTx && has_modifier(source, "expect_tx");
  out->handler = barrier_object_handler(op, has_modifier(source, "parity"), with_expect);
  if (op == BarrierOp::kCpAsyncArrive) out->count = has_modifier(source, "noinc") ? 1 : 0;
  return out->handler != nullptr;
}

rcuda::Status decode(const Linker& linker, uint32_t index,
                     const std::vector<std::unique_ptr<Function>>& functions) {
  return Decoder(linker, index, functions).run();
}

}  // namespace softgpu::exec
