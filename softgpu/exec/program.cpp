#include "softgpu/exec/program.h"

#include <algorithm>
#include <set>

#include "common/base/log.h"
#include "softgpu/exec/decode.h"
#include "softgpu/exec/linker.h"
#include "softgpu/exec/loaded_program.h"

namespace softgpu::exec {

using rcuda::Result;
using rcuda::Status;

const Kernel* LoadedProgram::find_kernel(const std::string& name) const {
  const auto found = kernel_by_name_.find(name);
  return found == kernel_by_name_.end() ? nullptr : found->second;
}

const Global* LoadedProgram::find_global(const std::string& name) const {
  const auto found = globals_.find(name);
  return found == globals_.end() ? nullptr : &found->second;
}

const Function* LoadedProgram::function_at(uint64_t address) const {
  if ((address & kWindowMask) != kFunctionWindow || address % 16 != 0) return nullptr;
  const uint64_t index = (address - kFunctionWindow) / 16;
  return index == 0 || index > functions_.size() ? nullptr : functions_[index - 1].get();
}

// The entry and all functions that it may call. An indirect call may reach every function whose
// address is taken anywhere in the program, because the pointer may have come through memory.
std::vector<const Function*> LoadedProgram::reachable_from(const Function& entry) const {
  std::set<const Function*> seen = {&entry};
  std::vector<const Function*> order = {&entry};
  bool indirect = false;
  const auto add = [&](const Function* f) {
    if (seen.insert(f).second) order.push_back(f);
  };
  for (size_t k = 0; k < order.size(); ++k) {
    for (const Function* callee : order[k]->callees) add(callee);
    if (!order[k]->calls_indirectly || indirect) continue;
    indirect = true;
    for (const uint32_t target : address_taken_) add(functions_[target].get());
  }
  return order;
}

void LoadedProgram::add_kernel(const Linker& linker, uint32_t index, const ptx::Module& unit) {
  const ptx::Function& source = *linker.functions()[index].source;
  const Function& entry = *functions_[index];
  auto code = std::make_unique<KernelCode>();
  code->program = this;
  code->entry = &entry;
  auto kernel = std::make_unique<Kernel>();
  kernel->name = entry.name;
  for (const Area& p : entry.parameters)
    kernel->parameters.push_back({p.offset_bytes, p.size_bytes});
  kernel->parameter_bytes = entry.parameter_bytes;
  kernel->const_bytes = linker.constant_bytes();
  kernel->ptx_version = unit.target_sm;
  kernel->static_shared_bytes = entry.shared_bytes;
  std::set<uint32_t> shared;
  for (const Function* f : reachable_from(entry)) {
    shared.insert(f->shared_symbols.begin(), f->shared_symbols.end());
    if (f != &entry) kernel->static_shared_bytes += f->shared_bytes;
    kernel->local_bytes += f->stack_bytes;
    kernel->registers = std::max(kernel->registers, f->register_count);
    if (kernel->unsupported.empty()) kernel->unsupported = f->unsupported;
  }
  for (const uint32_t s : shared)
    kernel->static_shared_bytes += linker.shared_variables()[s].size_bytes;
  // As on hardware, .reqntid does not lower the reported maximum of the kernel.
  const uint32_t* threads = source.max_threads;
  if (threads[0] != 0) {
    const uint64_t most =
        uint64_t{threads[0]} * std::max(threads[1], 1u) * std::max(threads[2], 1u);
    kernel->max_threads_per_block = static_cast<uint32_t>(std::min<uint64_t>(most, 1024));
  }
  std::copy(std::begin(source.required_threads), std::end(source.required_threads),
            kernel->required_block);
  kernel->code = code.get();
  kernel_by_name_.emplace(kernel->name, kernel.get());
  kernels_.push_back(kernel.get());
  codes_.push_back(std::move(code));
  kernel_storage_.push_back(std::move(kernel));
}

Result<std::unique_ptr<Program>> load(std::vector<std::unique_ptr<ptx::Module>> units,
                                      const DeviceAllocator& allocator) {
  auto program = std::make_unique<LoadedProgram>();
  Linker linker(units);
  RCUDA_RETURN_IF_ERROR(linker.run(allocator));
  const auto count = static_cast<uint32_t>(linker.functions().size());
  for (uint32_t k = 0; k < count; ++k) program->functions_.push_back(std::make_unique<Function>());
  for (uint32_t k = 0; k < count; ++k)
    RCUDA_RETURN_IF_ERROR(decode(linker, k, program->functions_));

  std::set<std::string> unsupported;
  for (const auto& f : program->functions_) {
    for (const std::string& name : f->unsupported_names) {
      if (!unsupported.insert(name).second) continue;
      RCUDA_WARN("PTX not supported: %s (first in '%s'); a kernel that needs it will not launch",
                 name.c_str(), f->name.c_str());
    }
  }

  std::set<uint32_t> taken;
  for (const auto& f : program->functions_)
    taken.insert(f->takes_address_of.begin(), f->takes_address_of.end());
  taken.insert(linker.relocated_functions().begin(), linker.relocated_functions().end());
  program->address_taken_.assign(taken.begin(), taken.end());

  program->placement_ = linker.take_placement();
  program->dynamic_shared_offset_ = linker.dynamic_shared_offset();
  for (uint32_t k = 0; k < count; ++k) {
    if (!program->functions_[k]->is_entry) continue;
    program->add_kernel(linker, k, *units[linker.functions()[k].unit]);
  }
  for (const Global& global : linker.globals()) program->globals_.emplace(global.name, global);
  return std::unique_ptr<Program>(std::move(program));
}

}  // namespace softgpu::exec
