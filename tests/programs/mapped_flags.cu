// Thousands of small mapped allocations of several sizes, which a driver may place in one cache
// line: the host and kernels write to neighbours at the same time, allocations are freed and
// replaced, and a kernel waits for a flag among them.
#include <cstring>
#include <vector>

#include "program.h"

namespace {

constexpr int kCount = 3000;
constexpr size_t kSizes[] = {4, 4, 4, 8, 4, 24, 4, 64, 4, 100, 4, 1000};

// Each allocation is a row of unsigned. The kernel increments the first and the last word of rows
// with (row + round) % 3 == 0.
__global__ void raise(unsigned** rows, const int* words, int count, int round) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= count || (row + round) % 3 != 0) return;
  ++rows[row][0];
  if (words[row] > 1) ++rows[row][words[row] - 1];
}
// Waits until the host has written the value, and then sets the neighbour.
__global__ void pass_on(const volatile unsigned* flag, unsigned value, unsigned* next) {
  while (*flag != value) {
  }
  *next = value;
}

class Rows {
 public:
  Rows() : on_device_(kCount), words_on_device_(kCount) {
    for (int row = 0; row < kCount; ++row) add(row);
    publish();
  }
  ~Rows() {
    for (unsigned* row : rows_) CUDA(cudaFreeHost(row));
  }
  // Each fourth allocation ends, and others of other sizes begin.
  void replace(int first) {
    for (int row = first; row < kCount; row += 4) CUDA(cudaFreeHost(rows_[row]));
    for (int row = first; row < kCount; row += 4) add(row);
    publish();
  }
  // The host writes while the kernel runs.
  void raise_all(int round) {
    raise<<<kCount / 128 + 1, 128>>>(on_device_.get(), words_on_device_.get(), kCount, round);
    CUDA(cudaGetLastError());
    for (int row = 0; row < kCount; ++row) {
      const bool by_kernel = (row + round) % 3 == 0;
      if (!by_kernel) raise_here(row);
      raise_expected(row);
    }
    CUDA(cudaDeviceSynchronize());
    check();
  }
  void check() const {
    for (int row = 0; row < kCount; ++row) {
      CHECK(std::memcmp(rows_[row], expected_[row].data(), 4 * expected_[row].size()) == 0);
    }
  }
  // A kernel waits for a row that the host writes, and other kernels wait for the kernel's row.
  void pass_from(int row, unsigned value) {
    pass_on<<<1, 1>>>(rows_[row], value, rows_[row + 1]);
    CUDA(cudaGetLastError());
    rows_[row][0] = expected_[row][0] = expected_[row + 1][0] = value;
    CUDA(cudaDeviceSynchronize());
    check();
  }

 private:
  void add(int row) {
    const size_t bytes = kSizes[allocated_++ % (sizeof kSizes / sizeof *kSizes)];
    unsigned* memory = nullptr;
    CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped));
    CHECK(reinterpret_cast<uintptr_t>(memory) % 16 == 0);
    expected_[row].assign(bytes / 4, static_cast<unsigned>(row));
    std::memcpy(memory, expected_[row].data(), bytes);
    rows_[row] = memory;
  }
  void publish() {
    std::vector<int> words;
    for (const auto& row : expected_) words.push_back(static_cast<int>(row.size()));
    CUDA(cudaMemcpy(on_device_.get(), rows_.data(), kCount * sizeof(unsigned*),
                    cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(words_on_device_.get(), words.data(), kCount * sizeof(int),
                    cudaMemcpyHostToDevice));
  }
  void raise_here(int row) {
    volatile unsigned* const words = rows_[row];
    words[0] = words[0] + 1;
    const size_t last = expected_[row].size() - 1;
    if (last > 0) words[last] = words[last] + 1;
  }
  void raise_expected(int row) {
    std::vector<unsigned>& words = expected_[row];
    ++words.front();
    if (words.size() > 1) ++words.back();
  }

  std::vector<unsigned*> rows_ = std::vector<unsigned*>(kCount);
  std::vector<std::vector<unsigned>> expected_ = std::vector<std::vector<unsigned>>(kCount);
  DeviceArray<unsigned*> on_device_;
  DeviceArray<int> words_on_device_;
  size_t allocated_ = 0;
};

}  // namespace

int main() {
  Rows rows;
  for (int round = 0; round < 6; ++round) rows.raise_all(round);
  std::printf("neighbours\n");
  for (int first = 0; first < 4; ++first) {
    rows.replace(first);
    rows.raise_all(first);
    rows.check();
  }
  std::printf("replaced\n");
  for (int row = 5; row < kCount - 1; row += 500) rows.pass_from(row, 1'000'000u + row);
  std::printf("passed on\n");
  for (int round = 0; round < 20; ++round) rows.raise_all(round);
  std::printf("neighbours again\n");
  return 0;
}
