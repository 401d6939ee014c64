// Joins the units of a program: resolves every symbol and places every variable.
//
// load() uses a Linker on one thread, and passes it to decode(). The Linker keeps pointers into the
// units. The device memory that it allocates is a Placement, which outlives the Linker.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "softgpu/exec/code.h"
#include "softgpu/exec/program.h"

namespace softgpu::exec {

struct Symbol {
  enum class Kind : uint8_t { kMissing, kAddress, kShared, kDynamicShared, kFunction, kSystemCall };
  Kind kind = Kind::kMissing;
  // kAddress: the device address. kShared: the offset. kFunction: index into functions().
  // kSystemCall: the SystemCall.
  uint64_t value = 0;
  uint32_t shared_index = 0;  // kShared: into shared_variables()
};

// The memory of a program's variables, released with the program.
class Placement {
 public:
  explicit Placement(std::function<void(CUdeviceptr)> release) : release_(std::move(release)) {}
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;
  void add(CUdeviceptr block) { blocks_.push_back(block); }

  std::vector<Range> constants;

 private:
  std::function<void(CUdeviceptr)> release_;
  std::vector<CUdeviceptr> blocks_;
};

class Linker {
 public:
  struct FunctionSource {
    const ptx::Function* source;
    uint32_t unit;
  };
  struct SharedVariable {
    uint32_t offset_bytes;
    uint32_t size_bytes;
  };

  explicit Linker(const std::vector<std::unique_ptr<ptx::Module>>& units) : units_(units) {}

  // Resolves names among the units, places variables and writes their initial values.
  rcuda::Status run(const DeviceAllocator& allocator);

  Symbol find(uint32_t unit, std::string_view name) const;

  const std::vector<FunctionSource>& functions() const { return functions_; }
  const std::vector<Global>& globals() const { return globals_; }
  // Functions whose addresses occur in initialisers.
  const std::vector<uint32_t>& relocated_functions() const { return relocated_functions_; }
  std::unique_ptr<Placement> take_placement() { return std::move(placement_); }
  uint32_t constant_bytes() const { return constant_bytes_; }

  // Shared memory: first the variables of module scope and those of .func bodies, at the same
  // offset in every kernel; then the kernel's own variables; then dynamic shared memory, again at
  // the same offset in every kernel.
  const std::vector<SharedVariable>& shared_variables() const { return shared_variables_; }
  uint32_t module_shared_bytes() const { return module_shared_bytes_; }
  uint32_t dynamic_shared_offset() const { return dynamic_shared_offset_; }
  // The offset of a shared variable that is declared in a function's body.
  uint32_t shared_offset(const ptx::Function& function, uint32_t variable) const;

 private:
  enum class Arena : uint8_t { kGlobal, kManaged, kConst };
  static constexpr int kArenas = 3;
  struct Placed {
    const ptx::Variable* variable;
    uint32_t unit;
    Arena arena;
    uint64_t offset;
  };
  using Names = std::unordered_map<std::string_view, Symbol>;
  using Variables = std::unordered_map<std::string_view, const ptx::Variable*>;

  rcuda::Status choose_variables(Variables* chosen) const;
  rcuda::Status index_variables();
  rcuda::Status index_functions();
  void place_shared(const ptx::Variable& variable, uint32_t unit);
  rcuda::Status place_function_shared();
  void define(uint32_t unit, std::string_view name, ptx::Linkage linkage, Symbol symbol);
  rcuda::Status allocate(const DeviceAllocator& allocator);
  rcuda::Status initialise();
  rcuda::Status relocate(const Placed& placed, std::byte* at, const ptx::Relocation& relocation);

  const std::vector<std::unique_ptr<ptx::Module>>& units_;
  Names program_;             // visible, weak and common symbols
  std::vector<Names> local_;  // internal symbols, by unit
  std::vector<FunctionSource> functions_;
  std::vector<Placed> placed_;
  uint64_t arena_bytes_[kArenas] = {};
  CUdeviceptr arena_base_[kArenas] = {};
  std::vector<SharedVariable> shared_variables_;
  std::unordered_map<const ptx::Function*, std::vector<uint32_t>> function_shared_;  // offsets
  uint32_t module_shared_bytes_ = 0;
  uint32_t dynamic_shared_offset_ = 0;
  uint32_t constant_bytes_ = 0;
  std::vector<Global> globals_;
  std::vector<uint32_t> relocated_functions_;
  std::unique_ptr<Placement> placement_;
};

}  // namespace softgpu::exec
