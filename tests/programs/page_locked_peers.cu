// A stream of one device writes page-locked memory, and a stream of another device waits for the
// first stream and then reads the memory. With one device, both streams belong to it. The output
// does not depend on the number of devices.
#include <atomic>
#include <thread>

#include "program.h"

// A copy that does not wait for another stream reads its source at once, although a copy to the
// same memory waits in the other stream.
void without_order(char* target, cudaStream_t reads, int reader, char* source, cudaStream_t writes,
                   int writer) {
  constexpr size_t kBytes = 300000;
  char* pinned;
  CUDA(cudaSetDevice(writer));
  CUDA(cudaMallocHost(&pinned, kBytes));
  for (size_t i = 0; i < kBytes; ++i) pinned[i] = 1;
  CUDA(cudaMemsetAsync(source, 2, kBytes, writes));
  CUDA(cudaStreamSynchronize(writes));
  static std::atomic<bool> go{false};
  CUDA(cudaLaunchHostFunc(
      writes,
      [](void*) {
        while (!go) std::this_thread::yield();
      },
      nullptr));
  CUDA(cudaMemcpyAsync(pinned, source, kBytes, cudaMemcpyDeviceToHost, writes));
  CUDA(cudaSetDevice(reader));
  CUDA(cudaMemcpyAsync(target, pinned, kBytes, cudaMemcpyHostToDevice, reads));
  CUDA(cudaStreamSynchronize(reads));
  go = true;
  std::vector<char> seen(kBytes);
  CUDA(cudaMemcpy(seen.data(), target, kBytes, cudaMemcpyDeviceToHost));
  for (const char byte : seen) CHECK(byte == 1);
  CUDA(cudaSetDevice(writer));
  CUDA(cudaStreamSynchronize(writes));
  for (size_t i = 0; i < kBytes; ++i) CHECK(pinned[i] == 2);
  CUDA(cudaFreeHost(pinned));
}

// Bytes go to the other device and back in each round, behind events that are recorded again and
// destroyed at once.
void to_and_fro(size_t bytes, char* target, cudaStream_t reads, int reader, char* source,
                cudaStream_t writes, int writer) {
  char *there, *back;
  CUDA(cudaSetDevice(writer));
  CUDA(cudaMallocHost(&there, bytes));
  CUDA(cudaMallocHost(&back, bytes));
  for (int round = 1; round <= 12; ++round) {
    cudaEvent_t written, read;
    CUDA(cudaSetDevice(writer));
    CUDA(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
    CUDA(cudaMemsetAsync(source, round, bytes, writes));
    CUDA(cudaMemcpyAsync(there, source, bytes, cudaMemcpyDeviceToHost, writes));
    CUDA(cudaEventRecord(written, writes));
    CUDA(cudaSetDevice(reader));
    CUDA(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
    CUDA(cudaStreamWaitEvent(reads, written, 0));
    CUDA(cudaMemcpyAsync(target, there, bytes, cudaMemcpyHostToDevice, reads));
    CUDA(cudaMemcpyAsync(back, target, bytes, cudaMemcpyDeviceToHost, reads));
    CUDA(cudaEventRecord(read, reads));
    CUDA(cudaSetDevice(writer));
    CUDA(cudaEventRecord(written, writes));
    CUDA(cudaEventDestroy(written));
    CUDA(cudaStreamWaitEvent(writes, read, 0));
    CUDA(cudaEventDestroy(read));
    CUDA(cudaMemcpyAsync(source, back, bytes, cudaMemcpyHostToDevice, writes));
    CUDA(cudaStreamSynchronize(writes));
    std::vector<char> seen(bytes);
    CUDA(cudaMemcpy(seen.data(), source, bytes, cudaMemcpyDeviceToHost));
    for (const char byte : seen) CHECK(byte == static_cast<char>(round));
  }
  CUDA(cudaFreeHost(there));
  CUDA(cudaFreeHost(back));
  std::printf("%zu bytes to and fro\n", bytes);
}

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

  constexpr size_t kLarge = 5 << 20;
  CUDA(cudaSetDevice(reader));
  CUDA(cudaFree(target));
  CUDA(cudaMalloc(&target, kLarge));
  CUDA(cudaSetDevice(writer));
  CUDA(cudaFree(source));
  CUDA(cudaMalloc(&source, kLarge));
  for (const size_t bytes : {size_t{100}, size_t{128 << 10}, size_t{300001}, kLarge}) {
    to_and_fro(bytes, target, reads, reader, source, writes, writer);
  }
  without_order(target, reads, reader, source, writes, writer);
}
