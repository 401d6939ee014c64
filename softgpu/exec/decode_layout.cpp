// Where a function's registers, local variables and constants lie.
#include <algorithm>
#include <cstring>
#include <string>

#include "softgpu/exec/decoder.h"
#include "softgpu/exec/round_up.h"

namespace softgpu::exec {

using ptx::Space;
using ptx::Type;

namespace {

// The most bytes of a function's constants, and of its registers. A Slot could address 1 GiB, but
// each warp has its own registers.
constexpr uint64_t kMaxBankBytes = 64 << 20;

}  // namespace

rcuda::Status Decoder::lay_out_registers() {
  const size_t count = source_.registers.size();
  register_offset_.resize(count);
  uint64_t end = kFirstPredicate;
  const auto place = [&](uint32_t bytes, uint32_t slot_bytes) {
    end = round_up(end, std::min(slot_bytes, 64u));
    for (uint32_t k = 0; k < count; ++k) {
      const bool is_predicate = source_.registers[k].type == Type::kPred;
      if ((is_predicate ? 0 : register_bytes(k)) != bytes) continue;
      register_offset_[k] = static_cast<uint32_t>(end);
      end += slot_bytes;
    }
  };
  place(0, 4);
  place(2, 64);
  place(4, 128);
  place(8, 256);
  place(16, 512);
  if (end > kMaxBankBytes) {
    return {rcuda::Code::kInvalidArgument, "function '" + out_.name + "' has too many registers"};
  }
  out_.register_bytes = static_cast<uint32_t>(round_up(end, 64));
  uint32_t words = 16;  // room for addresses and spills
  for (const ptx::Register& r : source_.registers) words += std::max(ptx::size_of(r.type), 4u) / 4;
  out_.register_count = std::min(words, 255u);
  return {};
}

void Decoder::lay_out_locals() {
  local_offset_.resize(source_.variables.size());
  uint32_t end = 0;
  const size_t parameters = source_.parameters.size();
  for (size_t k = 0; k < source_.variables.size(); ++k) {
    const ptx::Variable& variable = source_.variables[k];
    const bool in_buffer = source_.is_entry && k < parameters;
    if (in_buffer || (variable.space != Space::kLocal && variable.space != Space::kParam)) continue;
    const uint64_t offset = round_up(end, variable.align_bytes);
    if (offset + variable.size_bytes > kMaxLocalBytes || variable.size_bytes > kMaxLocalBytes) {
      // The function will never run, so the layout of its other variables does not matter.
      refuse(std::to_string(variable.size_bytes) + " bytes of local memory", 0);
      break;
    }
    local_offset_[k] = static_cast<uint32_t>(offset);
    out_.local_align_bytes = std::max(out_.local_align_bytes, variable.align_bytes);
    end = static_cast<uint32_t>(offset + variable.size_bytes);
  }
  out_.local_bytes = static_cast<uint32_t>(round_up(end, 16));
  out_.stack_bytes = out_.local_bytes;
  for (size_t k = 0; k < parameters; ++k) {
    const ptx::Parameter& p = source_.parameters[k];
    out_.parameters.push_back({source_.is_entry ? p.offset_bytes : local_offset_[k], p.size_bytes});
    out_.parameter_bytes = std::max(out_.parameter_bytes, p.offset_bytes + p.size_bytes);
  }
  for (size_t k = 0; k < source_.returns.size(); ++k) {
    out_.returns.push_back({local_offset_[parameters + k], source_.returns[k].size_bytes});
  }
  if (source_.is_entry) {
    uint32_t shared_end = linker_.module_shared_bytes();
    for (uint32_t k = 0; k < source_.variables.size(); ++k) {
      const ptx::Variable& variable = source_.variables[k];
      if (variable.space != Space::kShared || variable.size_bytes == 0) continue;
      shared_end = std::max(shared_end, linker_.shared_offset(source_, k) +
                                            static_cast<uint32_t>(variable.size_bytes));
    }
    out_.shared_bytes = shared_end - linker_.module_shared_bytes();
  } else {
    for (const ptx::Variable& variable : source_.variables) {
      if (variable.space == Space::kShared)
        out_.shared_bytes += static_cast<uint32_t>(variable.size_bytes);
    }
  }
}

Slot Decoder::constant(uint64_t bits, uint32_t bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (8 * bytes)) - 1;
  const auto [entry, is_new] =
      constants_.try_emplace({bytes, bits}, static_cast<uint32_t>(constant_bytes_));
  if (is_new) constant_bytes_ += std::max(bytes * kLanes, 64u);
  return Slot(Bank::kConstants, entry->second);
}

rcuda::Status Decoder::write_constants() {
  if (constant_bytes_ > kMaxBankBytes) {
    return {rcuda::Code::kInvalidArgument, "function '" + out_.name + "' has too many constants"};
  }
  // Each constant has a copy for each lane. A predicate operand reads only the first copy, so a
  // 4-byte constant can serve both predicates and 32-bit operands.
  out_.constants = AlignedBytes(std::max<size_t>(constant_bytes_, 64));
  for (const auto& [key, offset] : constants_) {
    const auto [bytes, bits] = key;
    for (uint32_t l = 0; l < kLanes; ++l) {
      std::byte* at = out_.constants.data.get() + offset + l * bytes;
      std::memset(at, 0, bytes);
      std::memcpy(at, &bits, std::min<uint32_t>(bytes, 8));
    }
  }
  return {};
}

}  // namespace softgpu::exec
