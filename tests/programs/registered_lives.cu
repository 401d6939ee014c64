// Registered memory stays private to the process: the parent does not see writes of a forked child,
// and the child does not see later writes of the parent or the GPU. This holds during a
// registration, after it and in the next one.
#include <cstdlib>
#include <cstring>

#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

constexpr size_t kBytes = 300'001;
constexpr size_t kBefore = 1234;  // bytes of the same allocation that share its pages
constexpr size_t kAfter = 2345;

__global__ void increment(unsigned char* bytes, size_t count) {
  for (size_t i = threadIdx.x; i < count; i += blockDim.x) ++bytes[i];
}

struct Memory {
  unsigned char* all = static_cast<unsigned char*>(std::malloc(kBefore + kBytes + kAfter));
  unsigned char* registered = all + kBefore;
  ~Memory() { std::free(all); }

  void set(unsigned char value) { std::memset(all, value, kBefore + kBytes + kAfter); }
  bool holds(unsigned char beside, unsigned char registered_value) const {
    for (size_t i = 0; i < kBefore + kBytes + kAfter; ++i) {
      const bool inside = i >= kBefore && i < kBefore + kBytes;
      if (all[i] != (inside ? registered_value : beside)) return false;
    }
    return true;
  }
};

void tell(int pipe) { CHECK(write(pipe, "", 1) == 1); }
void hear(int pipe) {
  char byte;
  CHECK(read(pipe, &byte, 1) == 1);
}

// At the beginning all bytes are 1. A child sees that, whatever the parent and the GPU write
// meanwhile. Then it changes all bytes, which the parent does not see.
void part_from_a_child(Memory& memory, const unsigned char* twos) {
  int to_child[2], to_parent[2];
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(to_child[1]);  // so that it notices the parent's end
    hear(to_child[0]);
    const bool unchanged = memory.holds(1, 1);
    memory.set(9);
    tell(to_parent[1]);
    hear(to_child[0]);
    _exit(unchanged && memory.holds(9, 9) ? 0 : 1);
  }
  close(to_child[0]);
  close(to_parent[1]);
  memory.set(3);
  CUDA(cudaMemcpy(memory.registered, twos, kBytes, cudaMemcpyDeviceToHost));
  tell(to_child[1]);
  hear(to_parent[0]);
  CHECK(memory.holds(3, 2));
  memory.set(4);
  tell(to_child[1]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(memory.holds(4, 4));
  memory.set(1);
  close(to_child[1]);
  close(to_parent[0]);
}

// Kernels use the memory by its device pointer.
void use(Memory& memory) {
  unsigned char* there;
  CUDA(cudaHostGetDevicePointer(&there, memory.registered, 0));
  increment<<<1, 256>>>(there, kBytes);
  FINISH();
  CHECK(memory.holds(1, 2));
  memory.set(1);
}

int main() {
  DeviceArray<unsigned char> twos(std::vector<unsigned char>(kBytes, 2));
  Memory memory;
  memory.set(1);
  CUDA(cudaHostRegister(memory.registered, kBytes, cudaHostRegisterMapped));
  use(memory);
  part_from_a_child(memory, twos.get());
  use(memory);
  std::printf("registered: parent and child have their own\n");

  CUDA(cudaHostUnregister(memory.registered));
  part_from_a_child(memory, twos.get());
  std::printf("unregistered: parent and child have their own\n");

  for (int i = 0; i < 3; ++i) {
    CUDA(cudaHostRegister(memory.registered, kBytes, cudaHostRegisterMapped));
    use(memory);
    if (i == 1) part_from_a_child(memory, twos.get());
    CUDA(cudaHostUnregister(memory.registered));
    CHECK(memory.holds(1, 1));
  }
  std::printf("registered again: used by kernels each time\n");
}
