// malloc, free, new and delete on the device; memory that lives from one kernel to the next.
#include "program.h"

struct Node {
  int value;
  Node* next;
};

__device__ Node* lists[64];

__global__ void build(int length) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  lists[i] = nullptr;
  for (int k = 0; k < length; ++k) {
    Node* node = new Node;
    node->value = i * 100 + k;
    node->next = lists[i];
    lists[i] = node;
  }
}

__global__ void sum_and_free(int* sums) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int sum = 0;
  for (Node* node = lists[i]; node != nullptr;) {
    sum = sum * 3 + node->value;
    Node* next = node->next;
    delete node;
    node = next;
  }
  sums[i] = sum;
}

__global__ void scratch(int* out, size_t bytes) {
  const int i = threadIdx.x;
  int* memory = static_cast<int*>(malloc(bytes));
  if (memory == nullptr) {
    out[i] = -1;
    return;
  }
  for (size_t k = 0; k < bytes / sizeof(int); ++k) memory[k] = static_cast<int>(k) + i;
  int sum = 0;
  for (size_t k = 0; k < bytes / sizeof(int); ++k) sum += memory[k];
  out[i] = sum;
  free(memory);
}

int main() {
  build<<<2, 32>>>(10);
  DeviceArray<int> sums(64);
  sum_and_free<<<2, 32>>>(sums.get());
  FINISH();
  const std::vector<int> result = sums.values();
  for (int i = 0; i < 64; ++i) {
    int sum = 0;
    for (int k = 9; k >= 0; --k) sum = sum * 3 + i * 100 + k;
    CHECK(result[i] == sum);
  }
  print_digest("lists", result);

  DeviceArray<int> out(32);
  for (int round = 0; round < 50; ++round) scratch<<<1, 32>>>(out.get(), 8192);
  FINISH();
  for (int i = 0; i < 32; ++i) CHECK(out.values()[i] == 2048 * 2047 / 2 + 2048 * i);

  size_t limit = 0;
  CUDA(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
  CHECK(limit >= 8 << 20);
  scratch<<<1, 1>>>(out.get(), size_t{1} << 40);
  FINISH();
  std::printf("more than the heap: %d\n", out.values()[0]);
}
