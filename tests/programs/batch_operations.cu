// Several operations in one call: copies between pointers and arrays, prefetches and discards of
// managed memory. Also calls that are refused, which do nothing.
#include "program.h"

constexpr int kWidth = 13, kHeight = 7, kDepth = 3;
constexpr int kCount = kWidth * kHeight * kDepth;

cudaMemcpy3DOperand at(void* pointer, size_t row = 0, size_t layer = 0) {
  cudaMemcpy3DOperand operand{};
  operand.type = cudaMemcpyOperandTypePointer;
  operand.op.ptr.ptr = pointer;
  operand.op.ptr.rowLength = row;
  operand.op.ptr.layerHeight = layer;
  return operand;
}

cudaMemcpy3DOperand in(cudaArray_t array, size_t x = 0, size_t y = 0, size_t z = 0) {
  cudaMemcpy3DOperand operand{};
  operand.type = cudaMemcpyOperandTypeArray;
  operand.op.array.array = array;
  operand.op.array.offset = {x, y, z};
  return operand;
}

cudaMemcpy3DBatchOp copy(const cudaMemcpy3DOperand& to, const cudaMemcpy3DOperand& from,
                         size_t width, size_t height, size_t depth) {
  cudaMemcpy3DBatchOp operation{};
  operation.src = from;
  operation.dst = to;
  operation.extent = {width, height, depth};
  operation.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  return operation;
}

void copies(cudaStream_t stream) {
  std::vector<int> first(kCount), second(kCount, -1);
  for (int i = 0; i < kCount; ++i) first[i] = i * 31;
  cudaArray_t array;
  const cudaChannelFormatDesc ints = cudaCreateChannelDesc<int>();
  CUDA(cudaMalloc3DArray(&array, &ints, {kWidth, kHeight, kDepth}, 0));
  DeviceArray<int> one(kCount), two(kCount);
  two.put(second);
  int *in_host, *out_host;
  CUDA(cudaMallocHost(&in_host, kCount * sizeof(int)));
  CUDA(cudaMallocHost(&out_host, kCount * sizeof(int)));
  for (int i = 0; i < kCount; ++i) in_host[i] = first[i];

  // Extents are in bytes between pointers, and in elements if one side is an array.
  cudaMemcpy3DBatchOp to_device[] = {
      copy(at(one.get()), at(in_host), kCount * sizeof(int), 1, 1),
      copy(in(array), at(in_host), kWidth, kHeight, kDepth),
  };
  CUDA(cudaMemcpy3DBatchAsync(2, to_device, 0, stream));
  CUDA(cudaStreamSynchronize(stream));
  cudaMemcpy3DBatchOp back[] = {
      copy(at(two.get(), kWidth, kHeight), in(array, 2, 1, 1), kWidth - 2, kHeight - 1, kDepth - 1),
      copy(at(out_host, kWidth, kHeight), in(array), kWidth, kHeight, kDepth),
  };
  CUDA(cudaMemcpy3DBatchAsync(2, back, 0, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(out_host[i] == first[i]);
  CHECK(one.values() == first);
  for (int z = 0; z < kDepth - 1; ++z) {
    for (int y = 0; y < kHeight - 1; ++y) {
      for (int x = 0; x < kWidth - 2; ++x) {
        second[(z * kHeight + y) * kWidth + x] =
            first[((z + 1) * kHeight + y + 1) * kWidth + x + 2];
      }
    }
  }
  CHECK(two.values() == second);
  print_digest("batch", two.values());

  // The source may change as soon as the call has returned.
  std::vector<int> fleeting(kCount, 5);
  cudaMemcpy3DBatchOp during = copy(at(one.get()), at(fleeting.data()), kCount * sizeof(int), 1, 1);
  during.srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall;
  CUDA(cudaMemcpy3DBatchAsync(1, &during, 0, stream));
  std::fill(fleeting.begin(), fleeting.end(), 6);
  CUDA(cudaStreamSynchronize(stream));
  CHECK(one.values() == std::vector<int>(kCount, 5));

  const auto refuse = [](const char* what, cudaError_t got) {
    std::printf("%s: %s\n", what, cudaGetErrorName(got));
    (void)cudaGetLastError();
  };
  refuse("no copies", cudaMemcpy3DBatchAsync(0, to_device, 0, stream));
  refuse("flags", cudaMemcpy3DBatchAsync(2, to_device, 1, stream));
  refuse("legacy stream", cudaMemcpy3DBatchAsync(2, to_device, 0, cudaStreamLegacy));
  cudaMemcpy3DBatchOp empty = copy(at(one.get()), at(in_host), 0, 1, 1);
  refuse("empty", cudaMemcpy3DBatchAsync(1, &empty, 0, stream));
  cudaMemcpy3DBatchOp narrow = copy(at(one.get(), 4), at(in_host), 8, 1, 1);
  refuse("rows too short", cudaMemcpy3DBatchAsync(1, &narrow, 0, stream));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  refuse("captured", cudaMemcpy3DBatchAsync(2, to_device, 0, stream));
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream, &graph);
  if (graph) CUDA(cudaGraphDestroy(graph));
  (void)cudaGetLastError();
  CUDA(cudaFreeArray(array));
  CUDA(cudaFreeHost(in_host));
  CUDA(cudaFreeHost(out_host));
}

__global__ void increment(int* values, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) ++values[i];
}

void managed(cudaStream_t stream) {
  int *first, *second;
  CUDA(cudaMallocManaged(&first, kCount * sizeof(int)));
  CUDA(cudaMallocManaged(&second, kCount * sizeof(int)));
  for (int i = 0; i < kCount; ++i) first[i] = second[i] = i;
  void* ranges[] = {first, second};
  size_t bytes[] = {kCount * sizeof(int), kCount * sizeof(int)};
  cudaMemLocation places[] = {{cudaMemLocationTypeDevice, 0}, {cudaMemLocationTypeHost, 0}};
  size_t starts[] = {0, 1};
  CUDA(cudaMemPrefetchBatchAsync(ranges, bytes, 2, places, starts, 1, 0, stream));
  increment<<<1, 128, 0, stream>>>(first, kCount);
  CUDA(cudaMemPrefetchBatchAsync(ranges, bytes, 2, places, starts, 2, 0, stream));
  increment<<<1, 128, 0, stream>>>(second, kCount);
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(first[i] == i + 1 && second[i] == i + 1);
  // Discarded memory must be written before it is read.
  CUDA(cudaMemDiscardBatchAsync(ranges, bytes, 2, 0, stream));
  CUDA(cudaMemsetAsync(first, 0, bytes[0], stream));
  CUDA(cudaMemDiscardAndPrefetchBatchAsync(ranges + 1, bytes + 1, 1, places, starts, 1, 0, stream));
  CUDA(cudaMemsetAsync(second, 0, bytes[1], stream));
  increment<<<1, 128, 0, stream>>>(second, kCount);
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(first[i] == 0 && second[i] == 1);
  int unmanaged = 0;
  void* wrong[] = {first, &unmanaged};
  std::printf("not managed: %s\n", cudaGetErrorName(cudaMemPrefetchBatchAsync(
                                       wrong, bytes, 2, places, starts, 1, 0, stream)));
  (void)cudaGetLastError();
  CUDA(cudaFree(first));
  CUDA(cudaFree(second));
  std::puts("managed");
}

// Works if the device's attribute reports it.
void flush() {
  int options = 0;
  CUDA(cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, 0));
  const cudaError_t expected =
      options & cudaFlushGPUDirectRDMAWritesOptionHost ? cudaSuccess : cudaErrorNotSupported;
  EXPECT(expected,
         cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                            cudaFlushGPUDirectRDMAWritesToOwner));
  (void)cudaGetLastError();
  std::puts("flush");
}

int main() {
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  copies(stream);
  managed(stream);
  flush();
  CUDA(cudaStreamDestroy(stream));
}
