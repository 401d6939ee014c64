// Fills and copies of memory of one device in a stream of another device, without peer access. If
// the driver refuses one, the call itself returns the error, not a later call. With one device,
// does nothing.
#include "program.h"

namespace {

// Returns the result of a call. Checks that no later call reports the error of that call.
cudaError_t alone(cudaError_t result, cudaStream_t stream) {
  CHECK(cudaGetLastError() == result);
  CUDA(cudaStreamSynchronize(stream));
  CHECK(cudaGetLastError() == cudaSuccess);
  return result;
}

constexpr size_t kBytes = 64;

struct Copies {
  cudaError_t in, out, between, box;
};

// Fills are refused for every kind of memory.
Copies use(char* foreign, char* own, cudaStream_t stream) {
  EXPECT(cudaErrorInvalidValue, alone(cudaMemsetAsync(foreign, 1, kBytes, stream), stream));
  EXPECT(cudaErrorInvalidValue, alone(cudaMemset2DAsync(foreign, 32, 1, 16, 2, stream), stream));
  char host[kBytes] = {7};
  Copies copies;
  copies.in = alone(cudaMemcpyAsync(foreign, host, kBytes, cudaMemcpyHostToDevice, stream), stream);
  copies.out =
      alone(cudaMemcpyAsync(host, foreign, kBytes, cudaMemcpyDeviceToHost, stream), stream);
  copies.between = alone(cudaMemcpyAsync(own, foreign, kBytes, cudaMemcpyDefault, stream), stream);
  cudaMemcpy3DParms box{};
  box.srcPtr = make_cudaPitchedPtr(foreign, 16, 16, 2);
  box.dstPtr = make_cudaPitchedPtr(own, 16, 16, 2);
  box.extent = make_cudaExtent(16, 2, 2);
  box.kind = cudaMemcpyDefault;
  copies.box = alone(cudaMemcpy3DAsync(&box, stream), stream);
  return copies;
}

}  // namespace

int main() {
  int devices;
  CUDA(cudaGetDeviceCount(&devices));
  if (devices > 1) {
    CUDA(cudaSetDevice(1));
    char *plain, *pooled, *own;
    cudaStream_t theirs, ours;
    CUDA(cudaStreamCreate(&theirs));
    CUDA(cudaMalloc(&plain, kBytes));
    CUDA(cudaMallocAsync(&pooled, kBytes, theirs));
    CUDA(cudaStreamSynchronize(theirs));
    CUDA(cudaSetDevice(0));
    CUDA(cudaMalloc(&own, kBytes));
    CUDA(cudaStreamCreate(&ours));
    const Copies of_plain = use(plain, own, ours);
    CHECK(of_plain.in == cudaSuccess && of_plain.out == cudaSuccess);
    CHECK(of_plain.between == cudaSuccess && of_plain.box == cudaSuccess);
    // A driver also refuses copies of a pool's memory; between servers, such copies are made.
    const Copies of_pool = use(pooled, own, ours);
    for (const cudaError_t result : {of_pool.in, of_pool.out, of_pool.between, of_pool.box}) {
      CHECK(result == cudaErrorInvalidValue || result == cudaSuccess);
    }
  }
  std::printf("refused by the call itself\n");
}
