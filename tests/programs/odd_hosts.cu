// Unusual host processes: descriptors 0 to 2 are closed before CUDA is first used, and the main
// thread ends with pthread_exit() while another thread continues to use CUDA, or begins to use it.
// With an argument, also checks that no descriptor of the driver is below 3 or inherited.
#include <cstring>
#include <string>

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

namespace {

constexpr int kCount = 1 << 16;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void add_one(int* values) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) values[i] += 1;
}

int output = STDOUT_FILENO;
bool strict = false;

void say(const std::string& line) {
  const std::string text = line + "\n";
  CHECK(write(output, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

void run(int* device) {
  add_one<<<(kCount + 255) / 256, 256>>>(device);
  FINISH();
}

// The kernel reads and writes the memory in place.
void check_in_place(const char* name, int* host, int* device) {
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kCount; ++i) host[i] = i * (round + 1);
    run(device);
    for (int i = 0; i < kCount; ++i) CHECK(host[i] == i * (round + 1) + 1);
  }
  say(name);
}

void check_copies() {
  DeviceArray<int> device(std::vector<int>(kCount, 5));
  run(device.get());
  CHECK(device.values() == std::vector<int>(kCount, 6));
}

void check_memory() {
  check_copies();
  say("copies");
  int *managed, *locked, *device;
  CUDA(cudaMallocManaged(&managed, kBytes));
  check_in_place("managed", managed, managed);
  CUDA(cudaFree(managed));
  CUDA(cudaMallocHost(&locked, kBytes));
  check_in_place("page-locked", locked, locked);
  CUDA(cudaFreeHost(locked));
  int* registered = static_cast<int*>(aligned_alloc(4096, kBytes));
  CUDA(cudaHostRegister(registered, kBytes, cudaHostRegisterMapped));
  CUDA(cudaHostGetDevicePointer(&device, registered, 0));
  check_in_place("registered", registered, device);
  CUDA(cudaHostUnregister(registered));
  free(registered);
}

// The program still writes lines of a log to the closed descriptors.
void check_closed() {
  char text[256];
  std::memset(text, 'x', sizeof text);
  for (int fd = 0; fd < 3; ++fd) (void)!write(fd, text, sizeof text);
  check_copies();
  say("closed");
}

// Descriptors 0 to 2 must be free for the program, and exec() must close the others.
void check_descriptors() {
  CHECK(open("/dev/null", O_RDWR) == 0 && dup2(0, 1) == 1 && dup2(0, 2) == 2);
  for (int fd = 3; fd < 200; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    CHECK(flags < 0 || (flags & FD_CLOEXEC) != 0);
  }
  check_copies();
  say("descriptors");
}

void* work(void* main_thread) {
  CHECK(pthread_join(*static_cast<pthread_t*>(main_thread), nullptr) == 0);
  check_memory();
  if (output != STDOUT_FILENO) check_closed();
  if (output != STDOUT_FILENO && strict) check_descriptors();
  std::exit(0);
}

// The main thread ends before the other thread continues.
void leave_to_another() {
  static pthread_t main_thread = pthread_self(), other;
  CHECK(pthread_create(&other, nullptr, work, &main_thread) == 0);
  pthread_exit(nullptr);
}

}  // namespace

int main(int count, char**) {
  strict = count > 1;
  const pid_t child = fork();
  if (child == 0) {
    output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 200);
    for (int fd = 0; fd < 200; ++fd) close(fd);
    leave_to_another();  // the other thread is the first to use CUDA
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_copies();
  leave_to_another();  // the other thread continues to use CUDA
}
