// A child of fork(), while a server has the current bytes of managed memory. The child can use its
// other memory. As with a local GPU, it cannot access managed memory: it would read outdated bytes,
// because nothing fetches the current ones for it. The parent continues to use the memory.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

constexpr size_t kWords = 1 << 20;

__global__ void increment(unsigned* words) {
  words[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

pid_t start_child(const std::function<int()>& run) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    _exit(run());
  }
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

bool all_are(const unsigned* words, unsigned value) {
  for (size_t i = 0; i < kWords; ++i) {
    if (words[i] != value) return false;
  }
  return true;
}

// Whether the client's buffers for the memory are mapped. If a child had them too, the system could
// not free them.
bool has_buffers() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("rcuda-mirror") != std::string::npos) return true;
  }
  return false;
}

int main() {
  unsigned* words;
  CUDA(cudaMallocManaged(&words, kWords * sizeof *words));
  std::fill_n(words, kWords, 1u);
  std::vector<unsigned> own(kWords, 7);
  unsigned value = 1;
  const auto change = [&] {
    increment<<<kWords / 256, 256>>>(words);
    CUDA(cudaDeviceSynchronize());
    ++value;
  };
  change();
  CHECK(words[0] == value);
  CHECK(has_buffers());
  int go[2];
  CHECK(pipe(go) == 0);
  const pid_t lives = start_child([&] {
    close(go[1]);
    char byte;
    if (read(go[0], &byte, 1) != 1 || !all_are(own.data(), 7)) return 1;
    std::fill(own.begin(), own.end(), 8u);
    if (write(STDOUT_FILENO, words + kWords / 2, 4) != -1 || errno != EFAULT) return 2;
    if (has_buffers()) return 3;
    return cudaDeviceSynchronize() == cudaSuccess ? 4 : 0;
  });
  const pid_t reads = start_child([&] { return words[kWords - 1] == 0 ? 1 : 2; });
  CHECK(WIFSIGNALED(status_of(reads)));
  const pid_t writes = start_child([&] {
    words[5] = 99;
    return 0;
  });
  CHECK(WIFSIGNALED(status_of(writes)));
  for (int time = 0; time < 3; ++time) {
    std::fill_n(words, kWords, value);
    change();
    CHECK(all_are(words, value));
    change();
  }
  CHECK(write(go[1], "", 1) == 1);
  CHECK(status_of(lives) == 0);
  CHECK(all_are(words, value));
  CHECK(all_are(own.data(), 7));
  CUDA(cudaFree(words));
}
