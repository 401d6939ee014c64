// Chooses which build of the handlers this process runs.
#include <cpuid.h>

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

// Features of x86-64-v3 that clang's __builtin_cpu_supports() does not know before version 16.
static bool has_lzcnt_movbe_f16c() {
  unsigned a, b, features, extended, d;
  return __get_cpuid(1, &a, &b, &features, &d) && (features & bit_MOVBE) && (features & bit_F16C) &&
         __get_cpuid(0x80000001, &a, &b, &extended, &d) && (extended & bit_LZCNT);
}
#endif

const InstructionSet& instruction_set() {
  static const InstructionSet kBaseline{baseline::find_handler, baseline::find_comparison};
#ifdef SOFTGPU_HAVE_V3
  static const InstructionSet kV3{v3::find_handler, v3::find_comparison};
  static const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                             has_lzcnt_movbe_f16c();
  if (has_v3) return kV3;
#endif
  return kBaseline;
}

}  // namespace softgpu::exec
