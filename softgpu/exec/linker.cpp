#include "softgpu/exec/linker.h"

#include <algorithm>
#include <cstring>

#include "softgpu/exec/round_up.h"

namespace softgpu::exec {
namespace {

using rcuda::Code;
using rcuda::Status;

constexpr uint32_t kDynamicSharedAlignBytes = 128;
constexpr uint64_t kMaxSharedBytes = 256 << 20;  // limit for all kernels of a program together

SystemCall system_call(std::string_view name) {
  if (name == "vprintf") return SystemCall::kVprintf;
  if (name == "malloc") return SystemCall::kMalloc;
  if (name == "free") return SystemCall::kFree;
  if (name == "__assertfail") return SystemCall::kAssertFail;
  if (name == "cudaGraphSetConditional") return SystemCall::kSetConditional;
  return SystemCall::kNone;
}

bool is_weak(const ptx::Variable& variable) {
  return variable.linkage == ptx::Linkage::kWeak || variable.linkage == ptx::Linkage::kCommon;
}

}  // namespace

Placement::~Placement() {
  for (const CUdeviceptr block : blocks_) release_(block);
}

Status Linker::run(const DeviceAllocator& allocator) {
  local_.resize(units_.size());
  RCUDA_RETURN_IF_ERROR(index_functions());
  RCUDA_RETURN_IF_ERROR(index_variables());
  RCUDA_RETURN_IF_ERROR(place_function_shared());
  RCUDA_RETURN_IF_ERROR(allocate(allocator));
  return initialise();
}

void Linker::define(uint32_t unit, std::string_view name, ptx::Linkage linkage, Symbol symbol) {
  if (linkage == ptx::Linkage::kInternal) {
    local_[unit].emplace(name, symbol);
  } else {
    program_.emplace(name, symbol);  // keeps the first weak definition
  }
}

Status Linker::index_functions() {
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    for (const ptx::Function& function : units_[unit]->functions) {
      if (!function.is_defined) continue;
      const bool internal = function.linkage == ptx::Linkage::kInternal;
      if (!internal && program_.count(function.name) != 0) {
        if (function.linkage == ptx::Linkage::kWeak) continue;
        const Symbol& known = program_[function.name];
        const FunctionSource& other = functions_[known.value];
        if (other.source->linkage != ptx::Linkage::kWeak) {
          return {Code::kInvalidArgument,
                  "function '" + std::string(function.name) + "' is defined by two units"};
        }
        program_.erase(function.name);  // a strong definition replaces a weak one
      }
      define(unit, function.name, function.linkage,
             {Symbol::Kind::kFunction, functions_.size(), 0});
      functions_.push_back({&function, unit});
    }
  }
  return {};
}

// A strong definition replaces a weak or common one, and two strong ones are an error. Otherwise
// the first stays.
Status Linker::choose_variables(Variables* chosen) const {
  for (const auto& unit : units_) {
    for (const ptx::Variable& variable : unit->variables) {
      if (variable.space == ptx::Space::kShared || variable.linkage == ptx::Linkage::kExtern ||
          variable.linkage == ptx::Linkage::kInternal) {
        continue;
      }
      const auto [known, is_first] = chosen->try_emplace(variable.name, &variable);
      if ((is_first && program_.count(variable.name) == 0) || is_weak(variable)) continue;
      if (is_first || !is_weak(*known->second)) {
        return {Code::kInvalidArgument,
                "variable '" + std::string(variable.name) + "' is defined by two units"};
      }
      known->second = &variable;
    }
  }
  return {};
}

Status Linker::index_variables() {
  Variables chosen;
  RCUDA_RETURN_IF_ERROR(choose_variables(&chosen));
  for (uint32_t unit = 0; unit < units_.size(); ++unit) {
    for (const ptx::Variable& variable : units_[unit]->variables) {
      if (variable.space == ptx::Space::kShared) {
        place_shared(variable, unit);
        continue;
      }
      if (variable.linkage == ptx::Linkage::kExtern) continue;
      const bool internal = variable.linkage == ptx::Linkage::kInternal;
      if (!internal && chosen[variable.name] != &variable) continue;
      const Arena arena = variable.space == ptx::Space::kConst ? Arena::kConst
                          : variable.managed                   ? Arena::kManaged
                                                               : Arena::kGlobal;
      uint64_t& end = arena_bytes_[static_cast<int>(arena)];
      uint64_t bytes = std::max<uint64_t>(variable.size_bytes, 1);
      if (variable.linkage == ptx::Linkage::kCommon) {  // the largest variable of this name
        for (const auto& other : units_) {
          for (const ptx::Variable& v : other->variables) {
            if (v.name == variable.name) bytes = std::max(bytes, v.size_bytes);
          }
        }
      }
      const uint64_t offset = round_up(end, variable.align_bytes);
      if (offset + bytes < bytes)
        return {Code::kOutOfMemory, "the program's global variables exceed the address space"};
      end = offset + bytes;
      // The symbol's value is an index into placed_, until allocate() replaces it by the address.
      define(unit, variable.name, variable.linkage, {Symbol::Kind::kAddress, placed_.size(), 0});
      placed_.push_back({&variable, unit, arena, offset});
    }
  }
  return {};
}

void Linker::place_shared(const ptx::Variable& variable, uint32_t unit) {
  if (variable.size_bytes == 0) {
    define(unit, variable.name, ptx::Linkage::kInternal, {Symbol::Kind::kDynamicShared, 0, 0});
    return;
  }
  if (variable.linkage == ptx::Linkage::kExtern) return;
  const auto offset = static_cast<uint32_t>(round_up(module_shared_bytes_, variable.align_bytes));
  module_shared_bytes_ = offset + static_cast<uint32_t>(variable.size_bytes);
  const auto index = static_cast<uint32_t>(shared_variables_.size());
  shared_variables_.push_back({offset, static_cast<uint32_t>(variable.size_bytes)});
  define(unit, variable.name, variable.linkage, {Symbol::Kind::kShared, offset, index});
}

// Places the shared variables of functions. Refuses far more shared memory than any GPU has; the
// driver decides how much a launch may use.
Status Linker::place_function_shared() {
  uint64_t total = 0;
  for (const auto& unit : units_) {
    for (const ptx::Variable& v : unit->variables) {
      if (v.space == ptx::Space::kShared)
        total += std::min(v.size_bytes, kMaxSharedBytes) + v.align_bytes;
    }
    for (const ptx::Function& f : unit->functions) {
      for (const ptx::Variable& v : f.variables) {
        if (v.space == ptx::Space::kShared)
          total += std::min(v.size_bytes, kMaxSharedBytes) + v.align_bytes;
      }
    }
  }
  if (total >= kMaxSharedBytes)
    return {Code::kInvalidArgument, "the program's shared variables must take fewer than " +
                                        std::to_string(kMaxSharedBytes) + " bytes"};

  const auto place = [&](const ptx::Function& function, uint32_t end) {
    std::vector<uint32_t>& offsets = function_shared_[&function];
    offsets.assign(function.variables.size(), 0);
    for (size_t k = 0; k < function.variables.size(); ++k) {
      const ptx::Variable& variable = function.variables[k];
      if (variable.space != ptx::Space::kShared || variable.size_bytes == 0) continue;
      offsets[k] = static_cast<uint32_t>(round_up(end, variable.align_bytes));
      end = offsets[k] + static_cast<uint32_t>(variable.size_bytes);
    }
    return end;
  };
  for (const FunctionSource& f : functions_) {
    if (!f.source->is_entry) module_shared_bytes_ = place(*f.source, module_shared_bytes_);
  }
  uint32_t end = module_shared_bytes_;
  for (const FunctionSource& f : functions_) {
    if (f.source->is_entry) end = std::max(end, place(*f.source, module_shared_bytes_));
  }
  dynamic_shared_offset_ = static_cast<uint32_t>(round_up(end, kDynamicSharedAlignBytes));
  return {};
}

uint32_t Linker::shared_offset(const ptx::Function& function, uint32_t variable) const {
  return function_shared_.at(&function)[variable];
}

Status Linker::allocate(const DeviceAllocator& allocator) {
  placement_ = std::make_unique<Placement>(allocator.release);
  for (int a = 0; a < kArenas; ++a) {
    if (arena_bytes_[a] == 0) continue;
    arena_base_[a] = allocator.allocate(arena_bytes_[a], static_cast<Arena>(a) == Arena::kManaged);
    if (arena_base_[a] == 0) {
      return {Code::kOutOfMemory, "no memory for " + std::to_string(arena_bytes_[a]) +
                                      " bytes of the program's variables"};
    }
    placement_->add(arena_base_[a]);
    std::memset(reinterpret_cast<void*>(arena_base_[a]), 0, arena_bytes_[a]);
  }
  const auto constants = static_cast<int>(Arena::kConst);
  constant_bytes_ = static_cast<uint32_t>(arena_bytes_[constants]);
  if (constant_bytes_ != 0) {
    placement_->constants.push_back(
        {arena_base_[constants], arena_base_[constants] + arena_bytes_[constants], Access::kRead});
  }
  const auto settle = [&](Names& names) {
    for (auto& [name, symbol] : names) {
      if (symbol.kind != Symbol::Kind::kAddress) continue;
      const Placed& placed = placed_[symbol.value];
      symbol.value = arena_base_[static_cast<int>(placed.arena)] + placed.offset;
    }
  };
  settle(program_);
  for (Names& names : local_) settle(names);
  for (const Placed& placed : placed_) {
    globals_.push_back({std::string(placed.variable->name),
                        arena_base_[static_cast<int>(placed.arena)] + placed.offset,
                        placed.variable->size_bytes, placed.variable->managed,
                        placed.variable->reference});
  }
  return {};
}

Status Linker::initialise() {
  for (const Placed& placed : placed_) {
    const ptx::Variable& variable = *placed.variable;
    auto* at =
        reinterpret_cast<std::byte*>(arena_base_[static_cast<int>(placed.arena)] + placed.offset);
    const size_t bytes = std::min<size_t>(variable.initial.size(), variable.size_bytes);
    if (bytes != 0) std::memcpy(at, variable.initial.data(), bytes);
    for (const ptx::Relocation& relocation : variable.relocations) {
      RCUDA_RETURN_IF_ERROR(relocate(placed, at, relocation));
    }
  }
  return {};
}

Status Linker::relocate(const Placed& placed, std::byte* at, const ptx::Relocation& relocation) {
  if (relocation.offset + relocation.size_bytes > placed.variable->size_bytes ||
      relocation.size_bytes > sizeof(uint64_t)) {
    return {Code::kInvalidArgument, "the initialiser of '" + std::string(placed.variable->name) +
                                        "' is longer than the variable"};
  }
  const Symbol symbol = find(placed.unit, relocation.symbol);
  uint64_t value = 0;
  switch (symbol.kind) {
    case Symbol::Kind::kAddress:
      value = symbol.value;
      break;
    case Symbol::Kind::kFunction:
      value = kFunctionWindow + 16 * (symbol.value + 1);
      relocated_functions_.push_back(static_cast<uint32_t>(symbol.value));
      break;
    case Symbol::Kind::kShared:
      value = symbol.value + (relocation.generic ? kSharedWindow : 0);
      break;
    case Symbol::Kind::kDynamicShared:
      value = dynamic_shared_offset_ + (relocation.generic ? kSharedWindow : 0);
      break;
    case Symbol::Kind::kSystemCall:
      break;  // a program cannot use the address of a system function
    case Symbol::Kind::kMissing:
      return {Code::kNotFound, "unresolved symbol '" + std::string(relocation.symbol) + "'"};
  }
  value = (value + static_cast<uint64_t>(relocation.addend)) >> relocation.shift_bits;
  std::memcpy(at + relocation.offset, &value, relocation.size_bytes);
  return {};
}

Symbol Linker::find(uint32_t unit, std::string_view name) const {
  if (const auto local = local_[unit].find(name); local != local_[unit].end()) return local->second;
  if (const auto shared = program_.find(name); shared != program_.end()) return shared->second;
  if (const SystemCall call = system_call(name); call != SystemCall::kNone) {
    return {Symbol::Kind::kSystemCall, static_cast<uint64_t>(call), 0};
  }
  return {};
}

}  // namespace softgpu::exec
