// Kernels use page-locked host memory by its host pointer. With unified addresses, this works for
// memory of every allocating call. After a synchronisation, each side sees the writes of the other.
#include "program.h"

struct View {
  int n;
  const int* in;
  int* out;
};

__global__ void triple(View view) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < view.n) view.out[i] = 3 * view.in[i];
}
__global__ void triple_behind(const View* view) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < view->n) view->out[i] = 3 * view->in[i];
}
__managed__ int managed_shift = 1;
__global__ void shift(int* values, const int* more, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += managed_shift + more[i];
}
__global__ void add(const int* in, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] += in[i];
}

__global__ void spin(long long cycles) {
  const long long end = clock64() + cycles;
  while (clock64() < end) {
  }
}
__global__ void grow(int* values, int more, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += more;
}

constexpr int kCount = 5000;

void use(const char* how, int* in, int* out) {
  for (int round = 1; round <= 2; ++round) {
    for (int i = 0; i < kCount; ++i) {
      in[i] = i * round;
      out[i] = -1;
    }
    triple<<<(kCount + 255) / 256, 256>>>({kCount, in, out});
    FINISH();
    for (int i = 0; i < kCount; ++i) CHECK(out[i] == 3 * i * round);
  }
  // Pointers into the allocation, together with copies of the same memory.
  std::vector<int> bytes(kCount);
  add<<<1, 256>>>(in + 100, out + 100, 256);
  CUDA(cudaMemcpyAsync(bytes.data(), out, kCount * sizeof(int), cudaMemcpyDefault, nullptr));
  CUDA(cudaStreamSynchronize(nullptr));
  for (int i = 0; i < kCount; ++i) CHECK(bytes[i] == (i >= 100 && i < 356 ? 8 : 6) * i);
  std::printf("%s\n", how);
}

// Kernels and copies of the same memory take turns in their stream; the host checks the result at
// the end. No kernel has used `memory` before.
void take_turns(const char* how, int* memory) {
  constexpr size_t kBytes = kCount * sizeof(int);
  constexpr int kBlocks = (kCount + 255) / 256;
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DeviceArray<int> first(kCount), second(kCount);
  const auto holds = [](const int* values, int expected) {
    for (int i = 0; i < kCount; ++i) CHECK(values[i] == expected + i);
  };
  const auto both_hold = [&](int in_first, int in_second) {
    holds(first.values().data(), in_first);
    holds(second.values().data(), in_second);
  };
  // A graph of copies, captured before any kernel has used the memory.
  cudaGraph_t early_graph;
  cudaGraphExec_t early;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaMemcpyAsync(first.get(), memory, kBytes, cudaMemcpyDefault, stream));
  CUDA(cudaMemcpyAsync(memory, second.get(), kBytes, cudaMemcpyDefault, stream));
  CUDA(cudaStreamEndCapture(stream, &early_graph));
  CUDA(cudaGraphInstantiate(&early, early_graph, 0));
  std::vector<int> numbers(kCount);
  for (int i = 0; i < kCount; ++i) numbers[i] = 10 + i;
  first.put(numbers);

  // The kernel adds to the copied values, and the copies after it read the sum.
  for (int i = 0; i < kCount; ++i) memory[i] = -1;
  spin<<<1, 1, 0, stream>>>(100'000);
  CUDA(cudaMemcpyAsync(memory, first.get(), kBytes, cudaMemcpyDefault, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 1, kCount);
  CUDA(cudaMemcpyAsync(first.get(), memory, kBytes, cudaMemcpyDefault, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 1, kCount);
  CUDA(cudaMemcpy2DAsync(second.get(), kBytes / 4, memory, kBytes / 4, kBytes / 4, 4,
                         cudaMemcpyDefault, stream));
  CUDA(cudaStreamSynchronize(stream));
  both_hold(11, 12);
  holds(memory, 12);

  // Copies and kernels see later writes of the host.
  for (int i = 0; i < kCount; ++i) memory[i] = 20 + i;
  CUDA(cudaMemcpyAsync(first.get(), memory, kBytes, cudaMemcpyDefault, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 5, kCount);
  CUDA(cudaMemcpyAsync(second.get(), memory, kBytes, cudaMemcpyDefault, stream));
  CUDA(cudaMemcpy2DAsync(memory, kBytes / 4, first.get(), kBytes / 4, kBytes / 4, 4,
                         cudaMemcpyDefault, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 10, kCount);
  cudaError_t state;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
  }
  CUDA(state);
  holds(memory, 30);
  both_hold(20, 25);

  // Synchronous copies.
  grow<<<kBlocks, 256>>>(memory, 1, kCount);
  CUDA(cudaMemcpy(first.get(), memory, kBytes, cudaMemcpyDefault));
  grow<<<kBlocks, 256>>>(memory, 1, kCount);
  CUDA(cudaMemcpy(memory, second.get(), kBytes, cudaMemcpyDefault));
  holds(memory, 25);
  both_hold(31, 25);

  // In graphs.
  grow<<<kBlocks, 256, 0, stream>>>(memory, 5, kCount);
  CUDA(cudaGraphLaunch(early, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 3, kCount);
  CUDA(cudaStreamSynchronize(stream));
  both_hold(30, 25);
  holds(memory, 28);
  CUDA(cudaGraphExecDestroy(early));
  CUDA(cudaGraphDestroy(early_graph));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 1, kCount);
  CUDA(cudaMemcpyAsync(first.get(), memory, kBytes, cudaMemcpyDefault, stream));
  CUDA(cudaMemcpyAsync(memory, second.get(), kBytes, cudaMemcpyDefault, stream));
  grow<<<kBlocks, 256, 0, stream>>>(memory, 2, kCount);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int value = 40; value < 42; ++value) {
    for (int i = 0; i < kCount; ++i) memory[i] = value + i;
    CUDA(cudaGraphLaunch(executable, stream));
    CUDA(cudaStreamSynchronize(stream));
    both_hold(value + 1, 25);
    holds(memory, 27);
  }
  CUDA(cudaGraphExecDestroy(executable));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamDestroy(stream));
  std::printf("%s in turn\n", how);
}

// Large memory whose pointer some kernels get inside a structure, and other kernels do not get.
void use_in_structure() {
  constexpr int kLarge = 40'000;
  int *in, *out;
  CUDA(cudaMallocHost(&in, kLarge * sizeof(int)));
  CUDA(cudaMallocHost(&out, kLarge * sizeof(int)));
  DeviceArray<int> device(kLarge);
  for (int round = 1; round <= 3; ++round) {
    for (int i = 0; i < kLarge; ++i) in[i] = i * round;
    grow<<<1, 256>>>(device.get(), round, 256);
    triple<<<(kLarge + 255) / 256, 256>>>({kLarge, in, out});
    grow<<<1, 256>>>(device.get(), round, 256);
    in[5] = -1;  // may come too late for the first kernel
    CUDA(cudaMemcpyAsync(device.get() + 1000, in, 1000 * sizeof(int), cudaMemcpyDefault, nullptr));
    FINISH();
    CHECK(device.values()[1005] == -1);
    for (int i = 6; i < kLarge; ++i) CHECK(out[i] == 3 * i * round);
    out[7] = round;
    triple<<<(kLarge + 255) / 256, 256>>>({6, in, out});
    FINISH();
    CHECK(out[5] == -3 && out[7] == round);
  }
  CUDA(cudaFreeHost(in));
  CUDA(cudaFreeHost(out));
  std::printf("in a structure\n");
}

// Copies of a managed variable.
void copy_variable() {
  int value = 0;
  managed_shift = 3;
  CUDA(cudaMemcpy(&value, &managed_shift, sizeof value, cudaMemcpyDefault));
  CHECK(value == 3);
  grow<<<1, 1>>>(&managed_shift, 4, 1);
  DeviceArray<int> device(1);
  CUDA(cudaMemcpyAsync(device.get(), &managed_shift, sizeof value, cudaMemcpyDefault));
  CHECK(device.values()[0] == 7);
  value = 100;
  CUDA(cudaMemcpy(&managed_shift, &value, sizeof value, cudaMemcpyDefault));
  CUDA(cudaDeviceSynchronize());
  CHECK(managed_shift == 100);
  std::printf("variable\n");
}

int main() {
  const size_t bytes = kCount * sizeof(int);
  DeviceArray<int> device(kCount);
  struct {
    const char* how;
    unsigned flags;
  } kinds[] = {{"default", cudaHostAllocDefault},
               {"portable", cudaHostAllocPortable},
               {"combined", cudaHostAllocWriteCombined},
               {"mapped", cudaHostAllocMapped}};
  for (const auto& kind : kinds) {
    int *in, *out;
    CUDA(cudaHostAlloc(&in, bytes, kind.flags));
    CUDA(cudaHostAlloc(&out, bytes, kind.flags));
    use(kind.how, in, out);
    CUDA(cudaFreeHost(in));
    CUDA(cudaHostAlloc(&in, bytes, kind.flags));
    take_turns(kind.how, in);
    CUDA(cudaFreeHost(in));
    CUDA(cudaFreeHost(out));
  }
  int* shared;
  CUDA(cudaMallocManaged(&shared, bytes));
  take_turns("managed", shared);
  CUDA(cudaFree(shared));
  copy_variable();
  int *in, *out;
  CUDA(cudaMallocHost(&in, bytes));
  CUDA(cudaMallocHost(&out, bytes));
  use("cudaMallocHost", in, out);
  use_in_structure();

  // Device pointers that are requested by a call, and that no kernel gets as a parameter.
  CUDA(cudaFreeHost(in));
  CUDA(cudaFreeHost(out));
  CUDA(cudaMallocHost(&in, bytes));
  CUDA(cudaMallocHost(&out, bytes));
  for (int i = 0; i < kCount; ++i) in[i] = i;
  View view{kCount, nullptr, nullptr};
  CUDA(cudaHostGetDevicePointer(const_cast<int**>(&view.in), in, 0));
  CUDA(cudaHostGetDevicePointer(&view.out, out, 0));
  CHECK(view.in == in && view.out == out);
  View* behind;
  CUDA(cudaMalloc(&behind, sizeof view));
  CUDA(cudaMemcpy(behind, &view, sizeof view, cudaMemcpyHostToDevice));
  triple_behind<<<(kCount + 255) / 256, 256>>>(behind);
  FINISH();
  for (int i = 0; i < kCount; ++i) CHECK(out[i] == 3 * i);
  std::printf("behind a pointer\n");
  CUDA(cudaFreeHost(in));
  CUDA(cudaFreeHost(out));

  // In a graph that is launched repeatedly: each launch sees the memory's present content, not the
  // content at the time of the capture.
  int* managed;
  CUDA(cudaMallocHost(&in, bytes));
  CUDA(cudaMallocHost(&out, bytes));
  CUDA(cudaMallocManaged(&managed, bytes));
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  managed_shift = 1000;
  for (int i = 0; i < kCount; ++i) in[i] = managed[i] = 1000;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  triple<<<(kCount + 255) / 256, 256, 0, stream>>>({kCount, in, out});
  add<<<(kCount + 255) / 256, 256, 0, stream>>>(in, out, kCount);
  shift<<<(kCount + 255) / 256, 256, 0, stream>>>(out, managed, kCount);
  CUDA(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 1; round <= 3; ++round) {
    managed_shift = 7 * round;
    for (int i = 0; i < kCount; ++i) {
      in[i] = i + round;
      managed[i] = -i;
    }
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) CHECK(out[i] == 4 * (i + round) + 7 * round - i);
  }
  std::printf("graph of %zu nodes\n", nodes);
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaFreeHost(in));
  CUDA(cudaFreeHost(out));
  CUDA(cudaFree(managed));

  // Registered memory of the application.
  for (unsigned flags :
       {cudaHostRegisterDefault, cudaHostRegisterPortable, cudaHostRegisterMapped}) {
    const size_t pages = (bytes + 4095) / 4096 * 4096;
    auto* source = static_cast<int*>(std::aligned_alloc(4096, pages));
    auto* target = static_cast<int*>(std::aligned_alloc(4096, pages));
    CUDA(cudaHostRegister(source, bytes, flags));
    CUDA(cudaHostRegister(target, bytes, flags));
    use(flags == cudaHostRegisterDefault    ? "registered"
        : flags == cudaHostRegisterPortable ? "registered portable"
                                            : "registered mapped",
        source, target);
    CUDA(cudaHostUnregister(source));
    CUDA(cudaHostRegister(source, bytes, flags));
    take_turns("registered", source);
    CUDA(cudaHostUnregister(source));
    CUDA(cudaHostUnregister(target));
    std::free(source);
    std::free(target);
  }
}
