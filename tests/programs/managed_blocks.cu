// Managed memory of many pages: after a synchronisation, each side sees the writes of the other,
// and nothing else changes. Also with system calls, copies, fills and host functions in between.
#include <cstring>
#include <functional>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

#include "program.h"

namespace {

constexpr int kCount = 300'001;  // more than a MB; no whole number of pages
constexpr int kPage = 4096 / sizeof(int);
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void add(int* values, int n, int more) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] += more;
}
__global__ void add_to_some(int* values, int n, int step, int more) {
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * step; i < n;
       i += gridDim.x * blockDim.x * step)
    values[i] += more;
}
__global__ void sum(const int* values, int n, unsigned long long* result) {
  unsigned long long mine = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    mine += static_cast<unsigned>(values[i]);
  atomicAdd(result, mine);
}

void launch(int* values, int more, cudaStream_t stream = nullptr) {
  add<<<64, 256, 0, stream>>>(values, kCount, more);
}

void expect(const int* values, const std::vector<int>& expected) {
  for (int i = 0; i < kCount; ++i) CHECK(values[i] == expected[i]);
}

// Checks the values that the device sees. The device does not write to them.
void expect_on_device(const int* values, const std::vector<int>& expected) {
  static unsigned long long* result = [] {
    unsigned long long* made;
    CUDA(cudaMallocManaged(&made, sizeof *made));
    return made;
  }();
  *result = 0;
  sum<<<64, 256>>>(values, kCount, result);
  FINISH();
  unsigned long long all = 0;
  for (int value : expected) all += static_cast<unsigned>(value);
  CHECK(*result == all);
}

// Each side writes all of the memory, some of it, or nothing.
void take_turns(int* values) {
  std::vector<int> expected(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = expected[i] = i;
  for (int round = 0; round < 3; ++round) {
    launch(values, 1);
    FINISH();
    for (int& value : expected) ++value;
    expect(values, expected);
    // A few words of the host, far apart.
    for (int i = round; i < kCount; i += 37 * kPage) values[i] = expected[i] = -i;
    expect_on_device(values, expected);
    // A few words of the device, in pages of their own.
    add_to_some<<<1, 32>>>(values, kCount, 11 * kPage, 1000);
    FINISH();
    for (int i = 0; i < kCount; i += 11 * kPage) expected[i] += 1000;
    expect(values, expected);
    // The host writes to pages that the device wrote, and the device writes there again.
    for (int i = 1; i < kCount; i += 11 * kPage) values[i] = expected[i] = round;
    add_to_some<<<1, 32>>>(values, kCount, 11 * kPage, 5);
    add_to_some<<<1, 32>>>(values, kCount, 22 * kPage, 5);
    FINISH();
    for (int i = 0; i < kCount; i += 11 * kPage) expected[i] += 5;
    for (int i = 0; i < kCount; i += 22 * kPage) expected[i] += 5;
    expect(values, expected);
  }
  // Writes of zeros count as well, also where no side has written before.
  std::memset(values, 0, kBytes);
  std::fill(expected.begin(), expected.end(), 0);
  expect_on_device(values, expected);
  std::printf("in turn\n");
}

// read(2), recv(2), write(2) and send(2) work with the memory as with any other memory.
void system_calls(int* values) {
  std::vector<int> expected(kCount);
  int ends[2];
  const auto move = [&](bool in, const char* how,
                        const std::function<ssize_t(char*, size_t)>& call) {
    std::vector<int> buffer(kCount);
    for (int i = 0; i < kCount; ++i) buffer[i] = 3 * i;
    if (in) expected = buffer;
    std::thread peer([&] {
      auto* at = reinterpret_cast<char*>(buffer.data());
      for (size_t done = 0; done < kBytes;) {
        const ssize_t moved =
            in ? write(ends[1], at + done, kBytes - done) : read(ends[1], at + done, kBytes - done);
        CHECK(moved > 0);
        done += static_cast<size_t>(moved);
      }
    });
    for (size_t done = 0; done < kBytes;) {
      const ssize_t moved = call(reinterpret_cast<char*>(values) + done, kBytes - done);
      CHECK(moved > 0);
      done += static_cast<size_t>(moved);
    }
    peer.join();
    if (!in) CHECK(buffer == expected);
    std::printf("%s\n", how);
  };
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (int round = 0; round < 2; ++round) {
    launch(values, 1);
    FINISH();  // the device has the newest bytes of every page
    move(true, "read", [&](char* to, size_t bytes) { return read(ends[0], to, bytes); });
    expect_on_device(values, expected);
    launch(values, 7);
    FINISH();
    for (int& value : expected) value += 7;
    move(false, "write", [&](char* from, size_t bytes) { return write(ends[0], from, bytes); });
    launch(values, 1);
    FINISH();
    move(true, "recv", [&](char* to, size_t bytes) { return recv(ends[0], to, bytes, 0); });
    launch(values, 1);
    FINISH();
    for (int& value : expected) ++value;
    move(false, "send", [&](char* from, size_t bytes) { return send(ends[0], from, bytes, 0); });
  }
  close(ends[0]);
  close(ends[1]);
}

// Copies and fills by the device, and host functions, in a stream.
void in_a_stream(int* values) {
  cudaStream_t stream;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  DeviceArray<int> device(kCount);
  std::vector<int> numbers(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) numbers[i] = expected[i] = 5 * i;
  for (int i = 0; i < kCount; ++i) values[i] = i;
  CUDA(cudaMemcpyAsync(device.get(), values, kBytes, cudaMemcpyDefault, stream));
  launch(device.get(), 1, stream);
  CUDA(cudaMemcpyAsync(values, device.get(), kBytes, cudaMemcpyDefault, stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) CHECK(values[i] == i + 1);
  CUDA(cudaMemcpy(values, numbers.data(), kBytes, cudaMemcpyDefault));
  expect(values, expected);
  values[7] = expected[7] = 1;
  CUDA(cudaMemcpy(numbers.data(), values, kBytes, cudaMemcpyDefault));
  CHECK(numbers == expected);
  // As host memory and as device memory.
  CUDA(cudaMemcpy(device.get(), values, kBytes, cudaMemcpyHostToDevice));
  launch(device.get(), 1);
  CUDA(cudaMemcpy(values, device.get(), kBytes, cudaMemcpyDeviceToHost));
  for (int& value : expected) ++value;
  expect(values, expected);
  launch(values, 1);
  CUDA(cudaMemcpy(numbers.data(), values, kBytes, cudaMemcpyHostToHost));
  for (int& value : expected) ++value;
  CHECK(numbers == expected);
  CUDA(cudaMemsetAsync(values + kPage, 0, 10 * kPage * sizeof(int), stream));
  CUDA(cudaStreamSynchronize(stream));
  std::fill_n(expected.begin() + kPage, 10 * kPage, 0);
  expect(values, expected);
  std::printf("copies\n");

  launch(values, 1, stream);
  CUDA(cudaLaunchHostFunc(
      stream,
      [](void* memory) {
        auto* seen = static_cast<int*>(memory);
        seen[5] = seen[4] + 100;  // the host function sees what the kernel wrote
        for (int i = 3; i < kCount; i += 50 * kPage) seen[i] *= 2;
      },
      values));
  launch(values, 1, stream);
  CUDA(cudaStreamSynchronize(stream));
  for (int& value : expected) ++value;
  expected[5] = expected[4] + 100;
  for (int i = 3; i < kCount; i += 50 * kPage) expected[i] *= 2;
  for (int& value : expected) ++value;
  expect(values, expected);
  std::printf("host function\n");
  CUDA(cudaStreamDestroy(stream));
}

// The host initialises one buffer while a kernel works on another. (CUDA allows this only for
// devices with concurrentManagedAccess, but programs do it.)
void beside_a_kernel(int* values, int* other) {
  launch(values, 1);
  for (int i = 0; i < kCount; ++i) other[i] = i;
  FINISH();
  std::vector<int> expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = i;
  expect(other, expected);
  launch(other, 2);
  FINISH();
  for (int& value : expected) value += 2;
  expect(other, expected);
  std::printf("beside a kernel\n");
}

}  // namespace

int main() {
  // A second allocation takes the place of the first.
  for (int life = 0; life < 2; ++life) {
    int *values, *other;
    CUDA(cudaMallocManaged(&values, kBytes));
    CUDA(cudaMallocManaged(&other, kBytes));
    take_turns(values);
    system_calls(values);
    in_a_stream(values);
    beside_a_kernel(values, other);
    CUDA(cudaFree(values));
    CUDA(cudaFree(other));
  }
}
