// Branches, calls, barriers and warp collectives, which the warp's loop executes itself.
#include <algorithm>

#include "softgpu/exec/collective.h"
#include "softgpu/exec/decoder.h"

namespace softgpu::exec {

using ptx::Operand;
using ptx::Space;
using ptx::Type;

bool Decoder::decode_control(const ptx::Instruction& source, const Pattern& pattern, Instr* out,
                             bool* handled) {
  *handled = true;
  switch (pattern.op) {
    case Op::kBra:
      out->flow = Flow::kBranch;
      if (source.operands.size() != 1 || source.operands[0].kind != Operand::Kind::kLabel)
        return false;
      out->target = source.operands[0].index;
      return true;
    case Op::kBrx:
      out->flow = Flow::kBranchTable;
      if (source.operands.size() != 2 || source.operands[1].kind != Operand::Kind::kTable)
        return false;
      out->target = source.operands[1].index;
      return this->source(source.operands[0], 4, Type::kNone, &out->a);
    case Op::kCall:
      return decode_call(source, out);
    case Op::kRet:
      out->flow = Flow::kReturn;
      return source.operands.empty();
    case Op::kExit:
      out->flow = Flow::kExit;
      return source.operands.empty();
    case Op::kBarSync:
    case Op::kBarArrive:
    case Op::kBarRed: {
      Form form = form_of(source, pattern.op);
      Operands operands;
      if (!read_operands(source, pattern, form, &operands)) return false;
      out->flow = pattern.op == Op::kBarArrive ? Flow::kArrive : Flow::kBarrier;
      out->a = operands.sources[0];
      const bool reduces = pattern.op == Op::kBarRed;
      if (operands.sources.size() > (reduces ? 2u : 1u)) {
        out->b = operands.sources[1];
        out->flags |= kHasCount;
      }
      BarrierReduction reduction = BarrierReduction::kNone;
      if (reduces) {
        out->d = operands.destinations[0];
        out->c = operands.sources.back();
        if (operands.negated_predicate) out->flags |= kNegateC;
        reduction = has_modifier(source, "popc")  ? BarrierReduction::kPopc
                    : has_modifier(source, "and") ? BarrierReduction::kAnd
                                                  : BarrierReduction::kOr;
      }
      out->sub = static_cast<uint8_t>(reduction);
      return true;
    }
    default:
      return decode_texture(source, pattern, out, handled);
  }
}

bool Decoder::call_areas(const Operand& list, std::vector<Area>* areas) {
  for (const Operand& argument : list.elements) {
    if (argument.kind != Operand::Kind::kVariable) return false;
    const ptx::Variable& variable = source_.variables[argument.index];
    const bool in_buffer = source_.is_entry && argument.index < source_.parameters.size();
    if (variable.space != Space::kParam || in_buffer) return false;
    areas->push_back({local_offset_[argument.index], static_cast<uint32_t>(variable.size_bytes)});
  }
  return true;
}

// call [(returns),] target [, (arguments)] [, prototype]
bool Decoder::decode_call(const ptx::Instruction& source, Instr* out) {
  CallSite site;
  size_t at = 0;
  const auto& operands = source.operands;
  if (at < operands.size() && operands[at].kind == Operand::Kind::kList) {
    if (!call_areas(operands[at++], &site.returns)) return false;
  }
  if (at == operands.size()) return false;
  const Operand& target = operands[at++];
  if (at < operands.size() && operands[at].kind == Operand::Kind::kList) {
    if (!call_areas(operands[at++], &site.arguments)) return false;
  }
  if (at < operands.size() && operands[at].kind == Operand::Kind::kTable) ++at;  // its prototype
  if (at != operands.size()) return false;

  out->flow = Flow::kCall;
  if (target.kind == Operand::Kind::kSymbol) {
    // softgpu has no device runtime (dynamic parallelism), but nvcc adds libcudadevrt to every
    // -rdc=true program. A missing symbol would make the load fail, so a call of the runtime
    // becomes an unsupported instruction instead. cnp*: functions of the driver that libcudadevrt
    // calls.
    const bool device_runtime = target.name.starts_with("cuda") ||
                                target.name.starts_with("__cuda") || target.name.starts_with("cnp");
    if (device_runtime && linker_.find(where_.unit, target.name).kind == Symbol::Kind::kMissing)
      return false;
    const Symbol symbol = find_symbol(target.name);
    if (symbol.kind == Symbol::Kind::kFunction) {
      site.callee = functions_[symbol.value].get();
      out_.callees.push_back(site.callee);
    } else if (symbol.kind == Symbol::Kind::kSystemCall) {
      site.system_call = static_cast<SystemCall>(symbol.value);
    } else {
      return false;
    }
  } else {
    out->flow = Flow::kCallIndirect;
    if (!this->source(target, 8, Type::kNone, &out->a)) return false;
    out_.calls_indirectly = true;
  }
  out->target = static_cast<uint32_t>(out_.calls.size());
  out_.calls.push_back(std::move(site));
  return true;
}

bool Decoder::assemble_collective(const ptx::Instruction& source, const Form& form,
                                  const Operands& operands, Instr* out) {
  out->flow = Flow::kCollective;
  if (!operands.destinations.empty()) out->d = operands.destinations[0];
  if (operands.paired) out->d2 = operands.destinations[1];
  std::vector<Slot> sources = operands.sources;
  const bool has_members = form.op == Op::kBarWarp || form.op == Op::kElect ||
                           form.op == Op::kMatch || has_modifier(source, "sync");
  if (has_members) {
    out->e = sources.back();
    sources.pop_back();
  } else {
    out->e = constant(kFullMask, 4);
    out->flags |= kActiveLanes;
  }
  Slot* const inputs[] = {&out->a, &out->b, &out->c};
  for (size_t k = 0; k < sources.size(); ++k) *inputs[k] = sources[k];
  if (operands.negated_predicate) out->flags |= kNegateA;

  Collective kind = Collective::kSyncWarp;
  switch (form.op) {
    case Op::kVote:
      kind = has_modifier(source, "all")   ? Collective::kVoteAll
             : has_modifier(source, "any") ? Collective::kVoteAny
             : has_modifier(source, "uni") ? Collective::kVoteUni
                                           : Collective::kBallot;
      break;
    case Op::kShfl:
      kind = has_modifier(source, "up")     ? Collective::kShuffleUp
             : has_modifier(source, "down") ? Collective::kShuffleDown
             : has_modifier(source, "bfly") ? Collective::kShuffleButterfly
                                            : Collective::kShuffleIndex;
      break;
    case Op::kMatch: {
      const bool wide = form.type == Type::kB64;
      kind = has_modifier(source, "all")
                 ? (wide ? Collective::kMatchAll64 : Collective::kMatchAll32)
                 : (wide ? Collective::kMatchAny64 : Collective::kMatchAny32);
      break;
    }
    case Op::kRedux: {
      const bool is_signed = form.type == Type::kS32;
      kind = has_modifier(source, "add") ? Collective::kReduceAdd
             : has_modifier(source, "min")
                 ? (is_signed ? Collective::kReduceMinS : Collective::kReduceMinU)
             : has_modifier(source, "max")
                 ? (is_signed ? Collective::kReduceMaxS : Collective::kReduceMaxU)
             : has_modifier(source, "and") ? Collective::kReduceAnd
             : has_modifier(source, "or")  ? Collective::kReduceOr
                                           : Collective::kReduceXor;
      break;
    }
    case Op::kElect:
      kind = Collective::kElect;
      break;
    default:
      break;
  }
  out->sub = static_cast<uint8_t>(kind);
  return true;
}

}  // namespace softgpu::exec
