// LoadedProgram: the implementation of Program (program.h), made by load(). It holds kernels,
// functions as decoded code, and the places of all variables.
//
// Complete when load() returns and constant afterwards, so any number of grids and threads may read
// it. It owns the code and the memory of its variables. The caller that launches a kernel keeps the
// program alive until the grid has ended.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "softgpu/exec/code.h"
#include "softgpu/exec/linker.h"
#include "softgpu/exec/program.h"

namespace softgpu::exec {

// Kernel::code points to one of these.
struct KernelCode {
  const class LoadedProgram* program = nullptr;
  const Function* entry = nullptr;
};

class LoadedProgram final : public Program {
 public:
  const Kernel* find_kernel(const std::string& name) const override;
  const Global* find_global(const std::string& name) const override;
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

  // The function for a pointer in the function window; nullptr for other pointers.
  const Function* function_at(uint64_t address) const;
  const std::vector<Range>& constants() const { return placement_->constants; }
  uint32_t dynamic_shared_offset() const { return dynamic_shared_offset_; }

 private:
  friend rcuda::Result<std::unique_ptr<Program>> load(
      std::vector<std::unique_ptr<ptx::Module>> units, const DeviceAllocator& allocator);
  void add_kernel(const Linker& linker, uint32_t index, const ptx::Module& unit);
  std::vector<const Function*> reachable_from(const Function& entry) const;

  std::unique_ptr<Placement> placement_;
  std::vector<std::unique_ptr<Function>> functions_;  // as in Linker::functions()
  std::vector<uint32_t> address_taken_;               // functions whose address is taken
  std::vector<std::unique_ptr<KernelCode>> codes_;
  std::vector<std::unique_ptr<Kernel>> kernel_storage_;
  std::vector<const Kernel*> kernels_;
  std::unordered_map<std::string, const Kernel*> kernel_by_name_;
  std::unordered_map<std::string, Global> globals_;  // by name
  uint32_t dynamic_shared_offset_ = 0;
};

}  // namespace softgpu::exec
