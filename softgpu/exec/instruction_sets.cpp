// Chooses which build of the handlers this process runs.
#include "softgpu/exec/form.h"

namespace softgpu::exec {

namespace baseline {
Handler find_handler(const Form& form);
uintptr_t find_comparison(const Form& form);
}  // namespace baseline
#ifdef SOFTGPU_HAVE_V3
namespace v3 {
Handler find_handler(const Form& form);
uintptr_t find_comparison(const Form& form);
}  // namespace v3
#endif

const InstructionSet& instruction_set() {
  static const InstructionSet kBaseline{"x86-64", baseline::find_handler,
                                        baseline::find_comparison};
#ifdef SOFTGPU_HAVE_V3
  static const InstructionSet kV3{"x86-64-v3", v3::find_handler, v3::find_comparison};
  static const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                             __builtin_cpu_supports("lzcnt") && __builtin_cpu_supports("movbe") &&
                             __builtin_cpu_supports("f16c");
  if (has_v3) return kV3;
#endif
  return kBaseline;
}

}  // namespace softgpu::exec
