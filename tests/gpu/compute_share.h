// Shared by the source files of compute_share: its kernels, the driver, and green contexts of a
// part of a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <cuda.h>

#include "api/driver_table.h"

namespace compute_share {

using Clock = std::chrono::steady_clock;

inline constexpr uint32_t kMostSms = 1024;

// `where` marks the multiprocessor of each block, and keeps it busy for `spin` clock ticks. `slow`
// writes 1 after `spin` ticks; `read` copies a word.
inline constexpr char kPtx[] = R"(
.version 7.8
.target sm_70
.address_size 64
.visible .entry where(.param .u64 out, .param .u64 spin) {
  .reg .u64 %a, %n, %t, %b; .reg .u32 %s, %o; .reg .pred %p;
  ld.param.u64 %a, [out];
  ld.param.u64 %n, [spin];
  mov.u32 %s, %smid;
  mad.wide.u32 %a, %s, 4, %a;
  mov.u32 %o, 1;
  st.global.u32 [%a], %o;
  mov.u64 %b, %clock64;
again:
  mov.u64 %t, %clock64;
  sub.u64 %t, %t, %b;
  setp.lt.u64 %p, %t, %n;
  @%p bra again;
  ret;
}
.visible .entry slow(.param .u64 out, .param .u64 spin) {
  .reg .u64 %a, %n, %t, %b; .reg .u32 %o; .reg .pred %p;
  ld.param.u64 %a, [out];
  ld.param.u64 %n, [spin];
  mov.u64 %b, %clock64;
again:
  mov.u64 %t, %clock64;
  sub.u64 %t, %t, %b;
  setp.lt.u64 %p, %t, %n;
  @%p bra again;
  mov.u32 %o, 1;
  st.global.u32 [%a], %o;
  ret;
}
.visible .entry read(.param .u64 out, .param .u64 from) {
  .reg .u64 %a, %f; .reg .u32 %v;
  ld.param.u64 %a, [out];
  ld.param.u64 %f, [from];
  ld.volatile.global.u32 %v, [%f];
  st.global.u32 [%a], %v;
  ret;
}
)";

inline rcuda::api::DriverTable cu;

inline std::string name_of(CUresult result) {
  const char* name = nullptr;
  return cu.cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "unknown error";
}

inline void must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %s\n", what, name_of(result).c_str());
  std::exit(2);
}

inline double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Share {
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  CUdevResource sms{};
};

// Makes a green context with at least `percent` of the device's multiprocessors.
inline CUresult make_share(CUdevice device, unsigned percent, Share* share) {
  CUdevResource all{}, rest{};
  if (!cu.cuGreenCtxCreate) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = cu.cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (result != CUDA_SUCCESS) return result;
  const unsigned wanted = (all.sm.smCount * percent + 99) / 100;
  unsigned groups = 1;
  result = cu.cuDevSmResourceSplitByCount(&share->sms, &groups, &all, &rest, 0, wanted);
  if (result != CUDA_SUCCESS) return result;
  CUdevResourceDesc description = nullptr;
  result = cu.cuDevResourceGenerateDesc(&description, &share->sms, 1);
  if (result != CUDA_SUCCESS) return result;
  result = cu.cuGreenCtxCreate(&share->green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  return cu.cuCtxFromGreenCtx(&share->context, share->green);
}

// Prints on which multiprocessors kernels run, by kind of launch. `percent`: the part of the green
// context.
void print_places(CUdevice device, unsigned percent);

}  // namespace compute_share
