// Sizes of zero and null pointers, which frameworks pass to the runtime in normal use.
#include "program.h"

namespace {

__global__ void add_one(int* values, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += 1;
}

void show(const char* call, cudaError_t result) {
  std::printf("  %-68s %s\n", call, cudaGetErrorName(result));
  cudaGetLastError();
}
#define SHOW(call) show(#call, call)

// Prints the same, and whether the call returned an address.
void show_address(const char* call, cudaError_t result, const void* address) {
  std::printf("  %-68s %s, %s\n", call, cudaGetErrorName(result), address ? "not null" : "null");
  cudaGetLastError();
}
#define SHOW_ADDRESS(call)              \
  do {                                  \
    p = reinterpret_cast<void*>(1);     \
    const cudaError_t result_ = (call); \
    show_address(#call, result_, p);    \
  } while (0)

void allocations(cudaStream_t s) {
  void* p = nullptr;
  size_t pitch = 0;
  SHOW_ADDRESS(cudaMalloc(&p, 0));
  SHOW_ADDRESS(cudaMallocHost(&p, 0));
  SHOW_ADDRESS(cudaHostAlloc(&p, 0, 0));
  SHOW_ADDRESS(cudaMallocManaged(&p, 0));
  SHOW_ADDRESS(cudaMallocAsync(&p, 0, s));
  SHOW(cudaFreeAsync(p, s));
  SHOW(cudaFreeAsync(nullptr, s));
  SHOW_ADDRESS(cudaMallocPitch(&p, &pitch, 0, 10));
  SHOW_ADDRESS(cudaMallocPitch(&p, &pitch, 10, 0));
  SHOW(cudaFree(nullptr));
  SHOW(cudaFreeHost(nullptr));
  SHOW(cudaFreeArray(nullptr));
  SHOW(cudaFreeMipmappedArray(nullptr));
}

void copies(void* d, int* h, cudaStream_t s) {
  SHOW(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault));
  SHOW(cudaMemcpy(d, h, 0, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpy(nullptr, h, 0, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpy(d, nullptr, 0, cudaMemcpyDeviceToHost));
  SHOW(cudaMemcpy(d, h, 0, static_cast<cudaMemcpyKind>(99)));
  SHOW(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDeviceToDevice, s));
  SHOW(cudaMemcpy2D(d, 64, h, 64, 0, 5, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpy2D(d, 64, h, 64, 5, 0, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpy2D(nullptr, 0, nullptr, 0, 0, 0, cudaMemcpyHostToDevice));
  SHOW(cudaMemcpyPeer(d, 0, d, 0, 0));
  cudaMemcpy3DParms box{};
  SHOW(cudaMemcpy3D(&box));
  box.srcPtr = make_cudaPitchedPtr(h, 64, 64, 8);
  box.dstPtr = make_cudaPitchedPtr(d, 64, 64, 8);
  box.kind = cudaMemcpyHostToDevice;
  SHOW(cudaMemcpy3D(&box));
  box.extent = make_cudaExtent(16, 0, 1);
  SHOW(cudaMemcpy3D(&box));
  SHOW(cudaMemset(nullptr, 0, 0));
  SHOW(cudaMemset(d, 0, 0));
  SHOW(cudaMemsetAsync(nullptr, 0, 0, s));
  SHOW(cudaMemset2D(d, 64, 0, 0, 5));
  SHOW(cudaMemset2D(d, 64, 0, 5, 0));
}

void launch(const char* what, dim3 grid, dim3 block, size_t shared, void* d) {
  add_one<<<grid, block, shared>>>(static_cast<int*>(d), 0);
  show(what, cudaGetLastError());
}

void launches(void* d) {
  launch("a grid of 0", 0, 32, 0, d);
  launch("a block of 0", 1, 0, 0, d);
  launch("a block of 2048", 1, 2048, 0, d);
  launch("1 MB of shared memory", 1, 32, 1 << 20, d);
  int blocks = 0;
  SHOW(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_one, 0, 0));
}

void handles(int* h, cudaStream_t s) {
  SHOW(cudaHostRegister(h, 0, 0));
  SHOW(cudaHostRegister(nullptr, 4096, 0));
  SHOW(cudaHostUnregister(nullptr));
  SHOW(cudaEventDestroy(nullptr));
  SHOW(cudaStreamDestroy(nullptr));
  SHOW(cudaStreamSynchronize(nullptr));
  SHOW(cudaEventSynchronize(nullptr));
  SHOW(cudaEventRecord(nullptr, s));
  SHOW(cudaGraphLaunch(nullptr, s));
  SHOW(cudaGraphDestroy(nullptr));
  SHOW(cudaGraphExecDestroy(nullptr));
  SHOW(cudaDestroyTextureObject(0));
  SHOW(cudaDestroySurfaceObject(0));
  SHOW(cudaIpcCloseMemHandle(nullptr));
}

void pointers(void* d) {
  cudaPointerAttributes found{};
  int local = 0;
  const auto tell = [&](const char* what, const void* pointer) {
    const cudaError_t result = cudaPointerGetAttributes(&found, pointer);
    std::printf("  %-20s %s, type %d, device %d, %s on the host\n", what, cudaGetErrorName(result),
                static_cast<int>(found.type), found.device,
                found.hostPointer ? "an address" : "null");
    cudaGetLastError();
  };
  tell("null", nullptr);
  tell("a variable", &local);
  tell("the last address", reinterpret_cast<void*>(-1L));
  tell("device memory", d);
  tell("behind its end", static_cast<char*>(d) + (8 << 20));
}

// Copies and fills of zero bytes in a capture: shows which of them become nodes.
void capture(void* d, int* h, cudaStream_t s) {
  const auto nodes = [&](const char* what, cudaError_t (*work)(void*, int*, cudaStream_t)) {
    cudaGraph_t graph = nullptr;
    CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    const cudaError_t result = work(d, h, s);
    const cudaError_t ended = cudaStreamEndCapture(s, &graph);
    if (ended != cudaSuccess) {
      std::printf("  %-20s %s, %s\n", what, cudaGetErrorName(result), cudaGetErrorName(ended));
      cudaGetLastError();
      return;
    }
    size_t count = 9;
    CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    std::printf("  %-20s %s, %zu nodes\n", what, cudaGetErrorName(result), count);
    cudaGraphExec_t executable;
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphLaunch(executable, s));
    CUDA(cudaStreamSynchronize(s));
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
  };
  nodes("a copy", [](void* to, int* from, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, 0, cudaMemcpyHostToDevice, stream);
  });
  nodes("a fill",
        [](void* to, int*, cudaStream_t stream) { return cudaMemsetAsync(to, 0, 0, stream); });
  nodes("a flat fill", [](void* to, int*, cudaStream_t stream) {
    return cudaMemset2DAsync(to, 64, 0, 0, 5, stream);
  });
}

}  // namespace

int main() {
  void* device = nullptr;
  int* host = nullptr;
  cudaStream_t stream;
  CUDA(cudaMalloc(&device, 8 << 20));
  CUDA(cudaMallocHost(&host, 4096));
  CUDA(cudaStreamCreate(&stream));
  std::puts("allocations");
  allocations(stream);
  std::puts("copies and fills");
  copies(device, host, stream);
  std::puts("launches");
  launches(device);
  std::puts("handles");
  handles(host, stream);
  std::puts("pointers");
  pointers(device);
  std::puts("captures");
  capture(device, host, stream);
  SHOW(cudaDeviceSynchronize());
}
