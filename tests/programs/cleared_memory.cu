// A process fills device memory with a pattern, and frees it or ends without freeing it. The memory
// of the next process must not contain the pattern.
//
//   cleared_memory [MEGABYTES]
//
// Each process takes MEGABYTES of device memory (by default 64), or as much as there is. The test
// is strictest with all memory: then the second process must get the memory of the first.
#include <algorithm>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

namespace {

constexpr unsigned long long kPattern = 0x5ec2e75ec2e7ull;
constexpr size_t kMegabyte = size_t{1} << 20;

__global__ void fill(unsigned long long* words, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    words[i] = kPattern;
  }
}

__global__ void look(const unsigned long long* words, size_t count, unsigned long long* found) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (words[i] == kPattern) atomicAdd(found, 1ull);
  }
}

struct Block {
  unsigned long long* words;
  size_t count;
};

// Takes up to `bytes`, in blocks that become smaller when the device has no larger ones. Every
// second block comes from the device's pool.
std::vector<Block> take(size_t bytes) {
  std::vector<Block> blocks;
  for (size_t block = 1024 * kMegabyte; block >= 2 * kMegabyte;) {
    void* memory = nullptr;
    const size_t wanted = std::min(block, bytes / 8 * 8);
    if (wanted == 0) break;
    const cudaError_t result =
        blocks.size() % 2 ? cudaMallocAsync(&memory, wanted, nullptr) : cudaMalloc(&memory, wanted);
    if (result != cudaSuccess) {
      CHECK(result == cudaErrorMemoryAllocation && cudaGetLastError() == result);
      block /= 2;
      continue;
    }
    blocks.push_back({static_cast<unsigned long long*>(memory), wanted / 8});
    bytes -= wanted;
  }
  CHECK(!blocks.empty());
  return blocks;
}

// A child process, and this process's ends of its pipes. A child that is ready writes a byte.
struct Child {
  pid_t pid;
  int ready, go;
};

template <typename Body>
Child start(Body&& body) {
  int up[2], down[2];
  CHECK(pipe(up) == 0 && pipe(down) == 0);
  std::fflush(stdout);  // otherwise the child would print the buffer again
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    close(down[1]);
    body([&] { CHECK(write(up[1], "", 1) == 1); },
         [&] {
           char byte;
           CHECK(read(down[0], &byte, 1) == 1);
         });
    std::fflush(stdout);
    std::_Exit(0);
  }
  close(up[1]);
  close(down[0]);
  return {pid, up[0], down[1]};
}

void wait_until_ready(const Child& child) {
  char byte;
  CHECK(read(child.ready, &byte, 1) == 1);
}

void finish(const Child& child, int signal = 0) {
  int status = 0;
  CHECK(waitpid(child.pid, &status, 0) == child.pid);
  CHECK(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal
               : WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(child.ready);
  close(child.go);
}

void fill_all(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) fill<<<1024, 256>>>(block.words, block.count);
  FINISH();
}

unsigned long long words_found(const std::vector<Block>& blocks) {
  DeviceArray<unsigned long long> found(std::vector<unsigned long long>{0});
  for (const Block& block : blocks) look<<<1024, 256>>>(block.words, block.count, found.get());
  FINISH();
  return found.values()[0];
}

// A process that takes memory and must not find the pattern in it.
void check_cleared(size_t bytes) {
  const Child reader = start([&](auto, auto) {
    CUDA(cudaFree(nullptr));
    const std::vector<Block> blocks = take(bytes);
    CHECK(words_found(blocks) == 0);
    // Check that the kernel finds the pattern where it is.
    fill_all({blocks[0]});
    CHECK(words_found({blocks[0]}) == blocks[0].count);
  });
  finish(reader);
}

}  // namespace

int main(int count, char** arguments) {
  // This process does not use CUDA, so its children can.
  const size_t bytes =
      count > 1 ? std::strtoull(arguments[1], nullptr, 10) * kMegabyte : 64 * kMegabyte;
  const Child alive = start([&](auto ready, auto wait) {
    const std::vector<Block> blocks = take(bytes);
    fill_all(blocks);
    for (size_t i = 0; i < blocks.size(); ++i) {
      CUDA(i % 2 ? cudaFreeAsync(blocks[i].words, nullptr) : cudaFree(blocks[i].words));
    }
    CUDA(cudaDeviceSynchronize());
    ready();
    wait();
  });
  wait_until_ready(alive);
  check_cleared(bytes);
  CHECK(write(alive.go, "", 1) == 1);
  finish(alive);
  std::printf("freed by a process that goes on: cleared\n");

  const Child leaving = start([&](auto, auto) { fill_all(take(bytes)); });
  finish(leaving);
  check_cleared(bytes);
  std::printf("left behind by a process that has ended: cleared\n");

  const Child killed = start([&](auto ready, auto wait) {
    fill_all(take(bytes));
    ready();
    wait();
  });
  wait_until_ready(killed);
  CHECK(kill(killed.pid, SIGKILL) == 0);
  finish(killed, SIGKILL);
  check_cleared(bytes);
  std::printf("left behind by a process that was killed: cleared\n");
}
