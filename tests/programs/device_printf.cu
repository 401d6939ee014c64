// printf on the device: every conversion, from one thread at a time so that the order is known.
#include "program.h"

struct Pair {
  long long a;
  short b;
};

__global__ void speak(int which, const char* name, Pair pair) {
  if (threadIdx.x != which) return;
  printf("thread %d of %u, block %d\n", threadIdx.x, blockDim.x, blockIdx.x);
  printf("%s %c %5d|%-5d|%05d %x %X %#o\n", name, 'c', -42, 42, 42, 255u, 255u, 8);
  printf("%lld %llu %hd %ld\n", pair.a, 1ull << 63, pair.b, -5l);
  printf("%f %.3f %e %g %10.2f|%-10.1f|\n", 1.5, 2.0 / 3, 12345.678, 1e-7, 3.14159, 2.5f);
  printf("100%% %p\n", static_cast<void*>(nullptr));
  printf("no newline,");
  printf(" then one\n");
  const int written = printf("%d\n", 7);
  printf("arguments of the last: %d\n", written);
}

__global__ void say(const char* what, int* value) {
  printf("%s\n", what);
  *value += 1;
}

// After each kind of wait, the output of a kernel is printed, also if a query has reported the
// kernel as done before.
void print_before_the_host() {
  DeviceArray<char> name(std::vector<char>{'k', 'e', 'r', 'n', 'e', 'l', '\0'});
  DeviceArray<int> value(std::vector<int>{0});
  int seen = 0;
  say<<<1, 1>>>(name.get(), value.get());
  CUDA(cudaMemcpy(&seen, value.get(), sizeof seen, cudaMemcpyDeviceToHost));
  std::printf("host, behind a copy: %d\n", seen);

  cudaStream_t stream;
  cudaEvent_t event;
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (const cudaStream_t at : {cudaStream_t(nullptr), stream}) {
    CUDA(cudaStreamSynchronize(at));
    say<<<1, 1, 0, at>>>(name.get(), value.get());
    while (cudaStreamQuery(at) == cudaErrorNotReady) {
    }
    CUDA(cudaStreamSynchronize(at));
    std::printf("host, behind a query and a wait for the stream\n");
    say<<<1, 1, 0, at>>>(name.get(), value.get());
    CUDA(cudaEventRecord(event, at));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    CUDA(cudaDeviceSynchronize());
    std::printf("host, behind a query and a wait for the device\n");
  }
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(stream));
}

int main() {
  DeviceArray<char> name(std::vector<char>{'n', 'a', 'm', 'e', '\0'});
  for (const int which : {0, 33}) {
    speak<<<1, 64>>>(which, name.get(), Pair{-1ll << 40, -7});
    FINISH();
  }
  for (int i = 0; i < 20; ++i) {
    speak<<<1, 1>>>(1, name.get(), Pair{});  // prints nothing
    FINISH();
  }
  std::printf("host\n");
  print_before_the_host();
}
