// Calls after which the host sees the kernels' writes to shared memory: all calls that wait for the
// kernels or find them done, even if that is not their purpose.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "program.h"

namespace {

constexpr int kLarge = 300'001, kSmall = 1000;
constexpr size_t kCopyBytes = 1 << 20;

__global__ void add(int* values, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    ++values[i];
}

__managed__ int variable;
__global__ void add_to_variable() { ++variable; }

// Memory that host and device share, of each kind.
struct Shared {
  Shared() {
    CUDA(cudaMallocManaged(&large, kLarge * sizeof(int)));
    CUDA(cudaMallocManaged(&small, kSmall * sizeof(int)));
    CUDA(cudaHostAlloc(&mapped, kSmall * sizeof(int), cudaHostAllocMapped));
    std::iota(large, large + kLarge, 0);
    std::iota(small, small + kSmall, 0);
    std::iota(mapped, mapped + kSmall, 0);
    variable = 0;
  }
  ~Shared() {
    CUDA(cudaFree(large));
    CUDA(cudaFree(small));
    CUDA(cudaFreeHost(mapped));
  }
  void launch(cudaStream_t stream) {
    add<<<64, 256, 0, stream>>>(large, kLarge);
    add<<<4, 256, 0, stream>>>(small, kSmall);
    add<<<4, 256, 0, stream>>>(mapped, kSmall);
    add_to_variable<<<1, 1, 0, stream>>>();
    ++launches;
  }
  void expect() const {
    for (int i = 0; i < kLarge; ++i) CHECK(large[i] == i + launches);
    for (int i = 0; i < kSmall; ++i) CHECK(small[i] == i + launches);
    for (int i = 0; i < kSmall; ++i) CHECK(mapped[i] == i + launches);
    CHECK(variable == launches);
  }

  int *large, *small, *mapped;
  int launches = 0;
};

void wait_in_a_stream(Shared& shared) {
  cudaStream_t stream, other;
  cudaEvent_t event, later;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&later, cudaEventDisableTiming));
  std::vector<int> pageable(kCopyBytes / sizeof(int));
  DeviceArray<int> device(pageable.size());
  std::atomic<bool> reached{false};
  const auto wait = [&](const char* how, const std::function<void()>& call) {
    // The second time, most pages have been fetched once.
    for (int round = 0; round < 2; ++round) {
      shared.launch(stream);
      call();
      shared.expect();
    }
    std::printf("%s\n", how);
  };
  const auto reach = [](cudaStream_t, cudaError_t status, void* flag) {
    CHECK(status == cudaSuccess);
    static_cast<std::atomic<bool>*>(flag)->store(true);
  };
  const auto await_reached = [&] {
    while (!reached.exchange(false)) std::this_thread::yield();
  };
  wait("cudaDeviceSynchronize", [] { CUDA(cudaDeviceSynchronize()); });
  wait("cudaStreamSynchronize", [&] { CUDA(cudaStreamSynchronize(stream)); });
  wait("cudaStreamQuery", [&] {
    while (cudaStreamQuery(stream) == cudaErrorNotReady) std::this_thread::yield();
  });
  wait("cudaEventSynchronize", [&] {
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaEventSynchronize(event));
  });
  wait("cudaEventQuery", [&] {
    CUDA(cudaEventRecord(event, stream));
    while (cudaEventQuery(event) == cudaErrorNotReady) std::this_thread::yield();
  });
  wait("an event behind cudaStreamWaitEvent", [&] {
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    CUDA(cudaEventRecord(later, other));
    CUDA(cudaEventSynchronize(later));
  });
  wait("a host function", [&] {
    CUDA(cudaLaunchHostFunc(
        stream, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &reached));
    await_reached();
  });
  wait("a callback", [&] {
    CUDA(cudaStreamAddCallback(stream, reach, &reached, 0));
    await_reached();
  });
  wait("an asynchronous copy to pageable memory", [&] {
    CUDA(cudaMemcpyAsync(pageable.data(), device.get(), kCopyBytes, cudaMemcpyDeviceToHost,
                         stream));
  });
  wait("an asynchronous copy between pageable memory", [&] {
    CUDA(cudaMemcpyAsync(pageable.data(), pageable.data() + 1000, 4000, cudaMemcpyHostToHost,
                         stream));
  });
  wait("a graph", [&] {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    shared.launch(stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
  });
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaEventDestroy(later));
}

// The kernels run on the last device, and the host waits for a stream of the first.
void wait_on_another_device(const Shared& shared) {
  int devices;
  cudaStream_t stream, other;
  cudaEvent_t event;
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA(cudaSetDevice(devices - 1));
  CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::vector<int> expected(shared.large, shared.large + kLarge);
  for (int round = 0; round < 2; ++round) {
    CUDA(cudaSetDevice(devices - 1));
    add<<<64, 256, 0, other>>>(shared.large, kLarge);
    CUDA(cudaEventRecord(event, other));
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamWaitEvent(stream, event, 0));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < kLarge; ++i) CHECK(shared.large[i] == ++expected[i]);
  }
  CUDA(cudaEventDestroy(event));
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaStreamDestroy(stream));
  std::printf("a stream of another device\n");
}

__global__ void say() { printf("the device prints\n"); }

// Output of a kernel arrives while a thread accesses the memory and holds stdout's lock.
void access_with_stdout(Shared& shared) {
  shared.launch(nullptr);
  FINISH();
  say<<<1, 1>>>();
  CUDA(cudaGetLastError());
  flockfile(stdout);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  shared.expect();
  funlockfile(stdout);
  FINISH();
}

// Calls that wait for the default stream.
void copy_and_fill(Shared& shared) {
  constexpr size_t kSide = 512;
  std::vector<int> pageable(kCopyBytes / sizeof(int));
  DeviceArray<int> device(pageable.size());
  int *locked, *filled;
  cudaArray_t array;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  CUDA(cudaMallocHost(&locked, kCopyBytes));
  CUDA(cudaMallocManaged(&filled, kCopyBytes));
  CUDA(cudaMallocArray(&array, &format, kSide, kSide));
  const auto wait = [&](const char* how, const std::function<void()>& call) {
    for (int round = 0; round < 2; ++round) {
      shared.launch(nullptr);
      call();
      shared.expect();
    }
    std::printf("%s\n", how);
  };
  const size_t pitch = kSide * sizeof(int);
  wait("cudaMemcpy from pageable memory", [&] {
    CUDA(cudaMemcpy(device.get(), pageable.data(), kCopyBytes, cudaMemcpyHostToDevice));
  });
  wait("cudaMemcpy to pageable memory", [&] {
    CUDA(cudaMemcpy(pageable.data(), device.get(), kCopyBytes, cudaMemcpyDeviceToHost));
  });
  wait("cudaMemcpy of one word to pageable memory", [&] {
    CUDA(cudaMemcpy(pageable.data(), device.get(), sizeof(int), cudaMemcpyDeviceToHost));
  });
  wait("cudaMemcpy from page-locked memory", [&] {
    CUDA(cudaMemcpy(device.get(), locked, kCopyBytes, cudaMemcpyHostToDevice));
  });
  wait("cudaMemcpy to page-locked memory", [&] {
    CUDA(cudaMemcpy(locked, device.get(), kCopyBytes, cudaMemcpyDeviceToHost));
  });
  wait("cudaMemcpy2D from pageable memory", [&] {
    CUDA(cudaMemcpy2D(device.get(), pitch, pageable.data(), pitch, pitch - 4, kSide,
                      cudaMemcpyHostToDevice));
  });
  wait("cudaMemcpy2D to pageable memory", [&] {
    CUDA(cudaMemcpy2D(pageable.data(), pitch, device.get(), pitch, pitch - 4, kSide,
                      cudaMemcpyDeviceToHost));
  });
  wait("cudaMemcpy2DToArray", [&] {
    CUDA(cudaMemcpy2DToArray(array, 0, 0, pageable.data(), pitch, pitch, kSide,
                             cudaMemcpyHostToDevice));
  });
  wait("cudaMemcpyFromSymbol", [&] {
    int value;
    CUDA(cudaMemcpyFromSymbol(&value, variable, sizeof value));
    CHECK(value == shared.launches);
  });
  wait("cudaMemset of managed memory", [&] {
    CUDA(cudaMemset(filled, shared.launches, kCopyBytes));
    for (size_t i = 0; i < kCopyBytes; i += 1001) {
      CHECK(reinterpret_cast<unsigned char*>(filled)[i] == shared.launches % 256);
    }
  });
  CUDA(cudaFreeArray(array));
  CUDA(cudaFreeHost(locked));
  CUDA(cudaFree(filled));
}

// Calls that wait for the device before they free.
void free_something(Shared& shared) {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  const auto wait = [&](const char* how, const auto& make, const auto& end) {
    auto made = make();
    for (int round = 0; round < 2; ++round) {
      shared.launch(nullptr);
      end(made[round]);
      shared.expect();
    }
    std::printf("%s\n", how);
  };
  const auto two = [](const auto& allocate) {
    std::array<int*, 2> memory;
    for (int*& one : memory) CUDA(allocate(&one));
    return memory;
  };
  wait("cudaFree", [&] { return two([](int** at) { return cudaMalloc(at, kCopyBytes); }); },
       [](int* memory) { CUDA(cudaFree(memory)); });
  wait("cudaFree of managed memory",
       [&] { return two([](int** at) { return cudaMallocManaged(at, kCopyBytes); }); },
       [](int* memory) { CUDA(cudaFree(memory)); });
  wait("cudaFree of a little managed memory",
       [&] { return two([](int** at) { return cudaMallocManaged(at, 4000); }); },
       [](int* memory) { CUDA(cudaFree(memory)); });
  wait("cudaFreeHost",
       [&] { return two([](int** at) { return cudaMallocHost(at, kCopyBytes); }); },
       [](int* memory) { CUDA(cudaFreeHost(memory)); });
  wait("cudaFreeArray",
       [&] {
         std::array<cudaArray_t, 2> arrays;
         for (cudaArray_t& one : arrays) CUDA(cudaMallocArray(&one, &format, 64, 64));
         return arrays;
       },
       [](cudaArray_t array) { CUDA(cudaFreeArray(array)); });
}

// The second time, only the copy can have changed the memory.
void free_behind_a_copy() {
  std::vector<int> pageable(kCopyBytes / sizeof(int));
  int* managed;
  std::array<int*, 4> freed;
  CUDA(cudaMallocManaged(&managed, kCopyBytes));
  for (int*& one : freed) CUDA(cudaMalloc(&one, kCopyBytes));
  for (int round = 0; round < 4; ++round) {
    pageable.assign(pageable.size(), round + 1);
    CUDA(cudaMemcpyAsync(managed, pageable.data(), kCopyBytes, cudaMemcpyDefault));
    CUDA(cudaFree(freed[round]));
    for (size_t i = 0; i < pageable.size(); ++i) CHECK(managed[i] == round + 1);
  }
  CUDA(cudaFree(managed));
  std::printf("cudaFree behind a copy\n");
}

}  // namespace

int main() {
  Shared shared;
  access_with_stdout(shared);
  wait_in_a_stream(shared);
  copy_and_fill(shared);
  free_something(shared);
  free_behind_a_copy();
  wait_on_another_device(shared);
}
