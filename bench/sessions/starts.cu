// A short CUDA program, for timing whole processes: it gets one result from one library and ends.
//
//   starts none | kernel | cublas | cufft | cusolver
//   starts rate SECONDS     for SECONDS, launches a hundred kernels at a time; prints kernels per
//                           second
//
// The libraries are opened at run time, so the program builds where they are not installed. Exit
// code 2: the library is not installed.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime.h>
#include <dlfcn.h>

#define CHECK(call)                                                                \
  do {                                                                             \
    const long long error = (call);                                                \
    if (error != 0) {                                                              \
      std::fprintf(stderr, "%s:%d: %s: %lld\n", __FILE__, __LINE__, #call, error); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

namespace {

constexpr int kSize = 64;  // of the square matrices, and of the transform

__global__ void twice(float* value) { *value *= 2; }

// Opens the newest installed version of the library.
void* open_library(const std::string& name) {
  for (int version = 13; version >= 10; --version) {
    if (void* library = dlopen((name + ".so." + std::to_string(version)).c_str(), RTLD_NOW))
      return library;
  }
  std::fprintf(stderr, "%s is not installed: %s\n", name.c_str(), dlerror());
  std::exit(2);
}

template <typename Function>
Function* function(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::exit(2);
  }
  return reinterpret_cast<Function*>(found);
}

float* device_copy(const std::vector<float>& values) {
  float* memory = nullptr;
  CHECK(cudaMalloc(&memory, values.size() * sizeof(float)));
  CHECK(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice));
  return memory;
}

float first_of(const float* memory) {
  float value = 0;
  CHECK(cudaMemcpy(&value, memory, sizeof value, cudaMemcpyDeviceToHost));
  return value;
}

// Returns a matrix with 4 on the diagonal and 0 elsewhere.
std::vector<float> diagonal() {
  std::vector<float> values(kSize * kSize, 0.0f);
  for (int i = 0; i < kSize; ++i) values[i * (kSize + 1)] = 4;
  return values;
}

float with_kernel() {
  float* value = device_copy({2.0f});
  twice<<<1, 1>>>(value);
  return first_of(value);
}

float rate(double seconds) {
  using Clock = std::chrono::steady_clock;
  float* value = device_copy({0.0f});
  const Clock::time_point begin = Clock::now();
  long launched = 0;
  std::chrono::duration<double> elapsed{0};
  for (; elapsed.count() < seconds; elapsed = Clock::now() - begin) {
    for (int i = 0; i < 100; ++i, ++launched) twice<<<1, 1>>>(value);
    CHECK(cudaDeviceSynchronize());
  }
  std::printf("%.0f\n", launched / elapsed.count());
  return 4 + first_of(value);
}

float with_cublas() {
  void* library = open_library("libcublas");
  void* handle = nullptr;
  CHECK(function<int(void**)>(library, "cublasCreate_v2")(&handle));
  float *a = device_copy(diagonal()), *b = device_copy(diagonal());
  const float one = 0.25f, zero = 0;
  using Gemm = int(void*, int, int, int, int, int, const float*, const float*, int, const float*,
                   int, const float*, float*, int);
  float* c = device_copy(diagonal());
  CHECK(function<Gemm>(library, "cublasSgemm_v2")(handle, 0, 0, kSize, kSize, kSize, &one, a, kSize,
                                                  b, kSize, &zero, c, kSize));
  return first_of(c);
}

float with_cufft() {
  void* library = open_library("libcufft");
  constexpr int kC2C = 0x29, kForward = -1;
  int plan = 0;
  CHECK(function<int(int*, int, int, int)>(library, "cufftPlan1d")(&plan, kSize, kC2C, 1));
  std::vector<float> values(2 * kSize, 0.0f);
  values[0] = 4;
  float* memory = device_copy(values);
  CHECK(function<int(int, void*, void*, int)>(library, "cufftExecC2C")(plan, memory, memory,
                                                                       kForward));
  return first_of(memory);
}

float with_cusolver() {
  void* library = open_library("libcusolver");
  void* handle = nullptr;
  CHECK(function<int(void**)>(library, "cusolverDnCreate")(&handle));
  float* a = device_copy(diagonal());
  constexpr int kLower = 0;
  int work_size = 0;
  CHECK(function<int(void*, int, int, float*, int, int*)>(library, "cusolverDnSpotrf_bufferSize")(
      handle, kLower, kSize, a, kSize, &work_size));
  float* work = device_copy(std::vector<float>(work_size + 1));
  CHECK(function<int(void*, int, int, float*, int, float*, int, int*)>(library, "cusolverDnSpotrf")(
      handle, kLower, kSize, a, kSize, work, work_size, reinterpret_cast<int*>(work + work_size)));
  return 2 * first_of(a);
}

}  // namespace

int main(int count, char** arguments) {
  const char* what = count > 1 ? arguments[1] : "none";
  CHECK(cudaFree(nullptr));
  float result = 4;
  if (!std::strcmp(what, "kernel")) result = with_kernel();
  if (!std::strcmp(what, "rate")) result = rate(count > 2 ? std::atof(arguments[2]) : 1);
  if (!std::strcmp(what, "cublas")) result = with_cublas();
  if (!std::strcmp(what, "cufft")) result = with_cufft();
  if (!std::strcmp(what, "cusolver")) result = with_cusolver();
  if (std::fabs(result - 4) > 1e-4) {
    std::fprintf(stderr, "%s: wrong result %g\n", what, result);
    return 1;
  }
}
