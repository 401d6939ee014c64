// A stream of one device writes page-locked memory, and a stream of another device waits for the
// first stream and then reads the memory. With one device, both streams belong to it. The output
// does not depend on the number of devices.
#include "program.h"

int main() {
  constexpr int kRounds = 60, kBefore = 20;
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  const int writer = 0, reader = devices > 1 ? 1 : 0;
  constexpr size_t kBytes = 20000;
  char *source, *target, *pinned;
  cudaStream_t writes, reads;
  cudaEvent_t written;
  CUDA(cudaMallocHost(&pinned, kBytes * kBefore));
  CUDA(cudaSetDevice(reader));
  CUDA(cudaMalloc(&target, kBytes));
  CUDA(cudaStreamCreateWithFlags(&reads, cudaStreamNonBlocking));
  CUDA(cudaSetDevice(writer));
  CUDA(cudaMalloc(&source, kBytes));
  CUDA(cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
  std::vector<char> seen(kBytes);
  for (int round = 1; round <= kRounds; ++round) {
    CUDA(cudaSetDevice(writer));
    CUDA(cudaMemsetAsync(source, round, kBytes, writes));
    // Several copies before the checked copy: they are under way when the second stream first
    // waits.
    for (int i = kBefore; i-- > 0;) {
      CUDA(cudaMemcpyAsync(pinned + i * kBytes, source, kBytes, cudaMemcpyDeviceToHost, writes));
    }
    CUDA(cudaEventRecord(written, writes));
    CUDA(cudaSetDevice(reader));
    CUDA(cudaStreamWaitEvent(reads, written, 0));
    CUDA(cudaMemcpyAsync(target, pinned, kBytes, cudaMemcpyHostToDevice, reads));
    CUDA(cudaStreamSynchronize(reads));
    CUDA(cudaMemcpy(seen.data(), target, kBytes, cudaMemcpyDeviceToHost));
    for (const char byte : seen) CHECK(byte == static_cast<char>(round));
  }
  std::printf("rounds: %d\n", kRounds);
}
