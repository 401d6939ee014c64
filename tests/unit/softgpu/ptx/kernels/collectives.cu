// Warp collectives, atomics, barriers, half precision and inline assembly with scopes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ unsigned lane_mask() {
  unsigned mask;
  asm volatile("{ .reg .u32 t; mov.u32 t, %%lanemask_lt; not.b32 %0, t; }" : "=r"(mask));
  return mask;
}

__device__ void spin(const int* flag) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t.reg .b32 seen;\n"
      "again:\n\tld.acquire.gpu.global.b32 seen, [%0];\n\tsetp.ne.b32 done, seen, 0;\n"
      "\t@!done bra again;\n\tbra.uni finished;\nfinished:\n}" ::"l"(flag));
}

extern "C" __global__ void collectives(int* out, __half2* halves, __nv_bfloat16* brains) {
  const unsigned all = 0xffffffff;
  const int lane = threadIdx.x & 31;
  int value = out[threadIdx.x];
  value += __shfl_down_sync(all, value, 4) + __shfl_xor_sync(all, value, 1);
  value += __ballot_sync(all, value > 3) + __any_sync(all, value) + __all_sync(all, value);
  value += __match_any_sync(all, value) + __activemask() + lane_mask();
  atomicAdd(out, value);
  atomicCAS(out + 1, lane, value);
  atomicMax(out + 2, value);
  atomicExch(out + 3, value);
  __threadfence();
  value += __syncthreads_count(value > 9);
  __syncwarp();
  spin(out + 4);
  spin(out + 5);
  halves[lane] = __hfma2(halves[lane], halves[lane + 1], __float2half2_rn(0.5f));
  brains[lane] =
      __float2bfloat16(__bfloat162float(brains[lane]) * 3.0f + sinf(value) + expf(value));
  asm volatile("bar.sync 1, 64;");
  out[threadIdx.x] = __dp4a(value, lane, 3) + __funnelshift_l(value, lane, 5);
}
