// Beginnings and ends of processes with CUDA: fork before and after CUDA is used, exec(), the first
// use by many threads at the same time, use by exit handlers and global objects.
#include <cstring>
#include <functional>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

__global__ void add(int* sum, int value) { atomicAdd(sum, value); }
__global__ void wait_for(const volatile int* flag) {
  while (*flag == 0) {
  }
}

// Uses memory, copies and a kernel. Returns the first error, or cudaSuccess.
cudaError_t use_the_gpu() {
  int *sum, value = 20;
  cudaError_t error = cudaMalloc(&sum, sizeof *sum);
  if (error != cudaSuccess) return error;
  if ((error = cudaMemcpy(sum, &value, sizeof value, cudaMemcpyHostToDevice)) != cudaSuccess)
    return error;
  add<<<1, 22>>>(sum, 1);
  if ((error = cudaMemcpy(&value, sum, sizeof value, cudaMemcpyDeviceToHost)) != cudaSuccess)
    return error;
  CHECK(value == 42);
  return cudaFree(sum);
}

// Runs `work` in a child, which ends by `leave`: with or without exit handlers. Returns its exit
// code.
int in_a_child(const std::function<int()>& work, void (*leave)(int) = std::exit) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) leave(work());
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

void become(const char* program, const char* what) {
  execl("/proc/self/exe", program, what, static_cast<char*>(nullptr));
  fail(__FILE__, __LINE__, "execl", strerror(errno));
}

// The destructor runs after main(). A driver registers its exit handler when it is first used.
// Handlers and destructors that are registered later run before the driver ends; those that are
// registered earlier run after that.
struct Late {
  const char* name;
  ~Late() {
    if (name) std::printf("%s: %s\n", name, cudaGetErrorName(use_the_gpu()));
  }
};

Late older{nullptr};

int last_life() {
  older.name = "older global object";
  std::atexit([] { std::printf("older exit handler: %s\n", cudaGetErrorName(use_the_gpu())); });
  CUDA(use_the_gpu());
  static Late object{"global object"};
  std::atexit([] { std::printf("exit handler: %s\n", cudaGetErrorName(use_the_gpu())); });
  std::printf("leaving\n");
  return 0;
}

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IONBF, 0);  // children must not print this process's buffer
  if (count > 1 && std::strcmp(arguments[1], "child") == 0) return use_the_gpu();
  if (count > 1) return last_life();

  // A process that has not used CUDA has no state of it, so its children can use CUDA.
  const int one = in_a_child(use_the_gpu), two = in_a_child(use_the_gpu);
  std::printf("children before: %d %d\n", one, two);

  // The child's kernel waits for a word of page-locked memory that is never written. The end of the
  // process does not wait for the kernel, whatever exit handlers call.
  const int leaves = in_a_child([] {
    older.name = "behind a kernel that never ends";
    int* flag;
    CUDA(cudaMallocHost(&flag, sizeof *flag));
    *flag = 0;
    wait_for<<<1, 1>>>(flag);
    return cudaGetLastError();
  });
  std::printf("child with a kernel that never ends: %d\n", leaves);

  // The first thread initialises CUDA, and the others wait for it.
  std::vector<cudaError_t> results(16, cudaErrorUnknown);
  std::vector<std::thread> threads;
  for (cudaError_t& result : results) {
    threads.emplace_back([&result] { result = use_the_gpu(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const cudaError_t result : results) CUDA(result);
  std::printf("%zu threads first\n", results.size());

  // Now this process has state of CUDA, and a child has none of the driver's threads.
  const int malloc_there = in_a_child([] {
    void* memory = nullptr;
    return cudaMalloc(&memory, 1);
  });
  const int copy_there = in_a_child([] {
    int value = 0;
    return cudaMemcpy(&value, &value, sizeof value, cudaMemcpyDefault);
  });
  std::printf("children after: %s %s\n", cudaGetErrorName(static_cast<cudaError_t>(malloc_there)),
              cudaGetErrorName(static_cast<cudaError_t>(copy_there)));
  // The same while other threads use CUDA. In the child, locks of the runtime may stay locked, and
  // the end of the process locks them.
  std::vector<std::thread> busy;
  volatile bool stop = false;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back([&stop] {
      while (!stop) CUDA(use_the_gpu());
    });
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(in_a_child(use_the_gpu, _exit) == cudaErrorInitializationError);
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  std::printf("child that becomes another: %d\n", in_a_child([&]() -> int {
                become(arguments[0], "child");
                return 99;
              }));
  std::printf("parent: %s\n", cudaGetErrorName(use_the_gpu()));

  // With work in progress for which no thread waits.
  int* sum;
  CUDA(cudaMalloc(&sum, sizeof *sum));
  for (int i = 0; i < 100; ++i) add<<<64, 256>>>(sum, 1);
  become(arguments[0], "last");
}
