// A stream has the priority that its program requested, also if an attribute changed it later.
#include "program.h"

int seen(cudaStream_t stream) {
  int priority = 1;
  CUDA(cudaStreamGetPriority(stream, &priority));
  cudaStreamAttrValue attribute{};
  CUDA(cudaStreamGetAttribute(stream, cudaStreamAttributePriority, &attribute));
  CHECK(attribute.priority == priority);
  return priority;
}

void set(cudaStream_t stream, int priority) {
  cudaStreamAttrValue attribute{};
  attribute.priority = priority;
  CUDA(cudaStreamSetAttribute(stream, cudaStreamAttributePriority, &attribute));
}

int main() {
  int least = 0, greatest = 0;
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(greatest < least);
  for (int priority = least; priority >= greatest; --priority) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
    CHECK(seen(stream) == priority);
    set(stream, greatest);
    CHECK(seen(stream) == greatest);
    set(stream, least);
    CHECK(seen(stream) == least);
    CUDA(cudaStreamDestroy(stream));
  }
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest - 10));
  CHECK(seen(stream) == greatest);
  CUDA(cudaStreamDestroy(stream));
  std::printf("priorities: as asked for\n");
  return 0;
}
