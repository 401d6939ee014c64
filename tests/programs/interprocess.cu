// Memory and an event of one process, used by another process.
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

constexpr int kCount = 5000;

__global__ void transform(int* values, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) values[i] = values[i] * factor + 1;
}

struct Handles {
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
};

void send(int descriptor, const void* data, size_t bytes) {
  CHECK(write(descriptor, data, bytes) == static_cast<ssize_t>(bytes));
}
void receive(int descriptor, void* data, size_t bytes) {
  CHECK(read(descriptor, data, bytes) == static_cast<ssize_t>(bytes));
}

int child(int in, int out) {
  Handles handles;
  receive(in, &handles, sizeof handles);
  int* values;
  cudaEvent_t event;
  CUDA(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&values), handles.memory,
                            cudaIpcMemLazyEnablePeerAccess));
  CUDA(cudaIpcOpenEventHandle(&event, handles.event));
  CUDA(cudaStreamWaitEvent(nullptr, event, 0));
  transform<<<(kCount + 255) / 256, 256>>>(values, 3);
  FINISH();
  CUDA(cudaIpcCloseMemHandle(values));
  CUDA(cudaEventDestroy(event));
  const char done = 1;
  send(out, &done, 1);
  return 0;
}

int main() {
  // The child must be forked before CUDA is used.
  int down[2], up[2];
  CHECK(pipe(down) == 0 && pipe(up) == 0);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) return child(down[0], up[1]);
  close(up[1]);  // so that the wait ends if the child fails

  std::vector<int> start(kCount);
  for (int i = 0; i < kCount; ++i) start[i] = i;
  DeviceArray<int> values(start);
  cudaEvent_t event;
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
  transform<<<(kCount + 255) / 256, 256>>>(values.get(), 2);
  CUDA(cudaEventRecord(event));
  Handles handles;
  CUDA(cudaIpcGetMemHandle(&handles.memory, values.get()));
  CUDA(cudaIpcGetEventHandle(&handles.event, event));
  send(down[1], &handles, sizeof handles);
  char done = 0;
  receive(up[0], &done, 1);
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  const std::vector<int> result = values.values();
  for (int i = 0; i < kCount; ++i) CHECK(result[i] == (2 * i + 1) * 3 + 1);
  CUDA(cudaEventDestroy(event));
  print_digest("values", result);
}
