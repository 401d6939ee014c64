// IEEE-exact float and double instructions bit by bit; approximate functions within their bounds.
#include <cmath>

#include "program.h"

__global__ void exact(const float* f, const double* d, float* fo, double* dout, int* io, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float a = f[i], b = f[n - 1 - i];
  const double c = d[i], e = d[n - 1 - i];
  float* x = fo + 12 * i;
  x[0] = __fadd_rn(a, b), x[1] = __fadd_rz(a, b), x[2] = __fadd_ru(a, b), x[3] = __fadd_rd(a, b);
  x[4] = __fmul_rn(a, b), x[5] = __fmaf_rn(a, b, a), x[6] = __fmaf_rz(a, b, 1.0f);
  x[7] = __fdiv_rn(a, b), x[8] = __fsqrt_rn(fabsf(a)), x[9] = __frcp_rn(b);
  x[10] = floorf(a) + ceilf(b) + truncf(a), x[11] = rintf(a) + fminf(a, b) * fmaxf(a, 2.0f);
  double* y = dout + 8 * i;
  y[0] = __dadd_rn(c, e), y[1] = __dmul_rn(c, e), y[2] = __fma_rn(c, e, c), y[3] = __ddiv_rn(c, e);
  y[4] = __dsqrt_rn(fabs(c)), y[5] = __dadd_ru(c, e), y[6] = floor(c) + rint(e), y[7] = fmod(c, e);
  int* z = io + 6 * i;
  z[0] = __float2int_rn(a), z[1] = __float2int_rz(b), z[2] = __double2int_ru(c);
  z[3] = static_cast<int>(__float2uint_rn(fabsf(a))), z[4] = static_cast<int>(c * 3), z[5] = a < b;
}

constexpr int kFunctions = 14;

__global__ void approximate(const float* in, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float x = in[i], positive = fabsf(x) + 0.001f;
  double* o = out + kFunctions * i;
  o[0] = sinf(x), o[1] = cosf(x), o[2] = expf(x * 0.05f), o[3] = logf(positive);
  o[4] = powf(positive, 0.7f), o[5] = tanhf(x), o[6] = rsqrtf(positive), o[7] = cbrtf(x);
  o[8] = sin(static_cast<double>(x)), o[9] = exp(x * 0.05),
  o[10] = log2(static_cast<double>(positive));
  o[11] = atan2(static_cast<double>(x), 3.0), o[12] = erff(x), o[13] = exp2f(x * 0.1f);
}

double reference(int function, float x) {
  const float positive = std::fabs(x) + 0.001f;
  const double d = x, p = positive;
  switch (function) {
    case 0:
    case 8:
      return std::sin(d);
    case 1:
      return std::cos(d);
    case 2:
      return std::exp(static_cast<double>(x * 0.05f));
    case 3:
      return std::log(p);
    case 4:
      return std::pow(p, static_cast<double>(0.7f));
    case 5:
      return std::tanh(d);
    case 6:
      return 1 / std::sqrt(p);
    case 7:
      return std::cbrt(d);
    case 9:
      return std::exp(x * 0.05);
    case 10:
      return std::log2(p);
    case 11:
      return std::atan2(d, 3.0);
    case 12:
      return std::erf(d);
    default:
      return std::exp2(static_cast<double>(x * 0.1f));
  }
}

int main() {
  const int n = 3000;
  Random random;
  std::vector<float> f(n);
  std::vector<double> d(n);
  const float special[] = {0.0f,  -0.0f,    1.0f,      -1.5f, 1e-40f,
                           3e38f, INFINITY, -INFINITY, 0.1f,  1e-20f};
  for (int i = 0; i < n; ++i) {
    f[i] = (static_cast<int>(random.next() & 0xffffff) - 0x800000) / 4096.0f;
    d[i] = f[i] * 1.000000123456789 + 1e-9 * random.below(1000);
    if (i % 7 == 0) f[i] = special[random.below(10)];
    if (i % 11 == 0) d[i] = special[random.below(10)];
  }
  DeviceArray<float> device_f(f), fo(12 * n);
  DeviceArray<double> device_d(d), dout(8 * n), functions(kFunctions * n);
  DeviceArray<int> io(6 * n);
  exact<<<n / 100, 100>>>(device_f.get(), device_d.get(), fo.get(), dout.get(), io.get(), n);
  FINISH();
  // The sign and payload of a NaN are unspecified.
  std::vector<float> floats = fo.values();
  for (float& x : floats) x = std::isnan(x) ? 0 : x;
  std::vector<double> doubles = dout.values();
  for (double& x : doubles) x = std::isnan(x) ? 0 : x;
  print_digest("float", floats);
  print_digest("double", doubles);
  print_digest("conversions", io.values());

  std::vector<float> in(n);
  for (float& x : in) x = (static_cast<int>(random.below(20001)) - 10000) / 500.0f;
  DeviceArray<float> device_in(in);
  approximate<<<n / 100, 100>>>(device_in.get(), functions.get(), n);
  FINISH();
  const std::vector<double> out = functions.values();
  for (int i = 0; i < n; ++i) {
    for (int function = 0; function < kFunctions; ++function) {
      const double want = reference(function, in[i]), got = out[kFunctions * i + function];
      const bool is_double = function >= 8 && function <= 11;
      // Generous multiples of the documented errors (a few units in the last place).
      const double bound =
          (is_double ? 1e-15 : 6e-7) * (std::fabs(want) + (is_double ? 1e-3 : 1e-2));
      if (std::fabs(want - got) > 4 * bound) {
        std::printf("function %d of %g: %.17g instead of %.17g\n", function, in[i], got, want);
        CHECK(!"within bounds");
      }
    }
  }
  std::printf("approximate functions within bounds\n");
}
