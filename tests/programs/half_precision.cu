// half and bfloat16: every one of the 65536 bit patterns through conversions, and arithmetic.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "program.h"

__global__ void convert(float* from_half, float* from_bfloat, unsigned short* back) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  from_half[i] = __half2float(__ushort_as_half(i));
  from_bfloat[i] = __bfloat162float(__ushort_as_bfloat16(i));
  // NaNs may change their payload.
  const bool nan = __hisnan(__ushort_as_half(i));
  back[i] = nan ? 0 : __half_as_ushort(__float2half_rn(from_half[i]));
  if (isnan(from_half[i])) from_half[i] = 0;
  if (isnan(from_bfloat[i])) from_bfloat[i] = 0;
}

__global__ void round_floats(const float* in, unsigned short* halves, unsigned short* bfloats,
                             int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  halves[3 * i] = __half_as_ushort(__float2half_rn(in[i]));
  halves[3 * i + 1] = __half_as_ushort(__float2half_rz(in[i]));
  halves[3 * i + 2] = __half_as_ushort(__float2half_ru(in[i]));
  bfloats[i] = __bfloat16_as_ushort(__float2bfloat16_rn(in[i]));
}

__global__ void arithmetic(const __half2* a, const __half2* b, __half2* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[6 * i] = __hadd2(a[i], b[i]);
  out[6 * i + 1] = __hmul2(a[i], b[i]);
  out[6 * i + 2] = __hfma2(a[i], b[i], a[i]);
  out[6 * i + 3] = __hsub2(b[i], a[i]);
  out[6 * i + 4] = __hmin2(a[i], b[i]);
  out[6 * i + 5] = __halves2half2(__hneg(__low2half(a[i])), __habs(__high2half(b[i])));
}

// Without the bfloat162 intrinsics, which nvcc has only for sm_80 and later.
__global__ void bfloat_arithmetic(const __nv_bfloat16* a, const __nv_bfloat16* b,
                                  __nv_bfloat16* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = __bfloat162float(a[i]), y = __bfloat162float(b[i]);
  out[3 * i] = __float2bfloat16_rn(__fadd_rn(x, y));
  out[3 * i + 1] = __float2bfloat16_rn(__fmul_rn(x, y));
#if __CUDA_ARCH__ >= 800
  out[3 * i + 2] = __hadd_rn(__hmul_rn(a[i], b[i]), b[i]);
#else
  const float product = __bfloat162float(__float2bfloat16_rn(__fmul_rn(x, y)));
  out[3 * i + 2] = __float2bfloat16_rn(__fadd_rn(product, y));
#endif
}

__global__ void compare(const __half* a, const __half* b, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hlt(a[i], b[i]) + 2 * __heq(a[i], b[i]) + 4 * __hge(a[i], b[i]);
}

int main() {
  DeviceArray<float> from_half(65536), from_bfloat(65536);
  DeviceArray<unsigned short> back(65536);
  convert<<<256, 256>>>(from_half.get(), from_bfloat.get(), back.get());
  FINISH();
  print_digest("half to float", from_half.values());
  print_digest("bfloat16 to float", from_bfloat.values());
  print_digest("and back", back.values());

  const int n = 2000;
  Random random;
  std::vector<float> floats(n);
  for (float& x : floats) x = (static_cast<int>(random.below(2000001)) - 1000000) / 1024.0f;
  DeviceArray<float> device_floats(floats);
  DeviceArray<unsigned short> halves(3 * n), bfloats(n);
  round_floats<<<8, 256>>>(device_floats.get(), halves.get(), bfloats.get(), n);
  FINISH();
  print_digest("rounded to half", halves.values());
  print_digest("rounded to bfloat16", bfloats.values());

  std::vector<__half2> a(n), b(n);
  std::vector<__nv_bfloat16> c(n), d(n);
  for (int i = 0; i < n; ++i) {
    const float x = (static_cast<int>(random.below(4001)) - 2000) / 64.0f;
    const float y = (static_cast<int>(random.below(4001)) - 2000) / 128.0f;
    a[i] = __floats2half2_rn(x, y);
    b[i] = __floats2half2_rn(y, x + y);
    c[i] = __float2bfloat16_rn(x);
    d[i] = __float2bfloat16_rn(x + y);
  }
  DeviceArray<__half2> device_a(a), device_b(b), out(6 * n);
  arithmetic<<<8, 256>>>(device_a.get(), device_b.get(), out.get(), n);
  DeviceArray<__nv_bfloat16> device_c(c), device_d(d), bfloat_out(3 * n);
  bfloat_arithmetic<<<8, 256>>>(device_c.get(), device_d.get(), bfloat_out.get(), n);
  DeviceArray<int> comparisons(n);
  compare<<<8, 256>>>(reinterpret_cast<__half*>(device_a.get()),
                      reinterpret_cast<__half*>(device_b.get()), comparisons.get(), n);
  FINISH();
  print_digest("half arithmetic", out.values());
  print_digest("bfloat16 arithmetic", bfloat_out.values());
  print_digest("comparisons", comparisons.values());
}
