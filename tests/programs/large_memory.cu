// Allocations of several megabytes, used repeatedly, in a fixed order, by kernels, copies, graphs
// and a texture of linear memory, and freed in stream order.
#include "program.h"

constexpr int kCount = 1 << 20;  // 4 MiB
constexpr int kThreads = 1 << 13;
constexpr int kStride = kCount / kThreads;  // a kernel touches some words of every page
constexpr int kRounds = 16;

__global__ void advance(unsigned* values, const unsigned* others, unsigned round) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * kStride + round % kStride;
  values[i] = values[i] * 3 + others[(i + 12345) % kCount] + round;
}

__global__ void fetch(unsigned* values, cudaTextureObject_t texture) {
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * kStride;
  values[i] ^= tex1Dfetch<unsigned>(texture, (i * 7) % kCount);
}

cudaTextureObject_t texture_of(unsigned* values) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear = {values, cudaCreateChannelDesc<unsigned>(), kCount * sizeof(unsigned)};
  cudaTextureDesc how = {};
  cudaTextureObject_t texture = 0;
  CUDA(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  return texture;
}

int main() {
  std::vector<unsigned> start(kCount);
  for (int i = 0; i < kCount; ++i) start[i] = static_cast<unsigned>(i);
  DeviceArray<unsigned> values(start), others(start), kept(start);
  const cudaTextureObject_t texture = texture_of(kept.get());
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  advance<<<kThreads / 256, 256, 0, stream>>>(values.get(), others.get(), 5);
  CUDA(cudaMemcpyAsync(kept.get(), values.get(), values.bytes(), cudaMemcpyDeviceToDevice, stream));
  fetch<<<kThreads / 256, 256, 0, stream>>>(values.get(), texture);
  CUDA(cudaMemsetAsync(others.get(), 1, others.bytes() / 2, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));

  for (unsigned round = 0; round < kRounds; ++round) {
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    unsigned* more;
    CUDA(cudaMalloc(&more, values.bytes()));
    CUDA(cudaMemcpy(more, values.get(), values.bytes(), cudaMemcpyDeviceToDevice));
    advance<<<kThreads / 256, 256>>>(others.get(), more, round);
    FINISH();
    // Both ways to free it.
    if (round % 2) {
      CUDA(cudaFree(more));
    } else {
      CUDA(cudaFreeAsync(more, nullptr));
    }
    if (round % 4 == 3) {
      std::printf("%u: %016llx %016llx\n", round,
                  static_cast<unsigned long long>(digest(values.values())),
                  static_cast<unsigned long long>(digest(others.values())));
    }
  }
  CUDA(cudaDestroyTextureObject(texture));
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  return 0;
}
