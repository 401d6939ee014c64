// Recursion, function pointers, virtual functions and local arrays, all with divergence.
#include "program.h"

__device__ __noinline__ unsigned fibonacci(unsigned n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

__device__ __noinline__ void hanoi(int disks, int from, int to, int* moves, int limit) {
  if (disks == 0) return;
  hanoi(disks - 1, from, 3 - from - to, moves, limit);
  if (*moves < limit) moves[1 + *moves] = from * 3 + to;
  ++*moves;
  hanoi(disks - 1, 3 - from - to, to, moves, limit);
}

struct Shape {
  __device__ virtual ~Shape() {}
  __device__ virtual float area() const = 0;
  __device__ virtual int corners() const { return 0; }
};
struct Square : Shape {
  float side;
  __device__ explicit Square(float s) : side(s) {}
  __device__ float area() const override { return side * side; }
  __device__ int corners() const override { return 4; }
};
struct Triangle : Shape {
  float base, height;
  __device__ Triangle(float b, float h) : base(b), height(h) {}
  __device__ float area() const override { return base * height / 2; }
  __device__ int corners() const override { return 3; }
};
struct Disc : Shape {
  __device__ float area() const override { return 3; }
};

using Operation = int (*)(int, int);
__device__ int add(int a, int b) { return a + b; }
__device__ int multiply(int a, int b) { return a * b; }
__device__ int subtract(int a, int b) { return a - b; }
__device__ Operation operations[3] = {add, multiply, subtract};

struct Large {
  int values[20];
};
__device__ __noinline__ Large scale(Large in, int factor) {
  for (int& value : in.values) value *= factor;
  return in;
}

__global__ void run(int* out) {
  const int i = threadIdx.x;
  int* o = out + 8 * i;
  o[0] = fibonacci(i % 12);
  int moves[40] = {};
  hanoi(i % 5, 0, 2, moves, 39);
  int hash = 0;
  for (int k = 0; k < 40; ++k) hash = hash * 31 + moves[k];
  o[1] = hash;
  Square square(i);
  Triangle triangle(i, 3);
  Disc disc;
  const Shape* shapes[3] = {&square, &triangle, &disc};
  o[2] = static_cast<int>(shapes[i % 3]->area() * 2) + 1000 * shapes[(i + 1) % 3]->corners();
  o[3] = operations[i % 3](i, 7);
  Operation chosen = i % 2 ? add : multiply;
  o[4] = chosen(chosen(i, 3), i);
  Large large;
  for (int k = 0; k < 20; ++k) large.values[k] = i + k;
  large = scale(large, i % 4);
  o[5] = large.values[i % 20] + large.values[19];
  unsigned char bytes[16];
  for (int k = 0; k < 16; ++k) bytes[(k * 5 + i) % 16] = static_cast<unsigned char>(k * i);
  o[6] = bytes[i % 16] | bytes[(i + 7) % 16] << 8;
  switch (i % 9) {
    case 0:
      o[7] = i << 2;
      break;
    case 1:
      o[7] = i + 100;
      break;
    case 2:
      o[7] = -i;
      break;
    case 3:
      o[7] = i * i;
      break;
    case 4:
      o[7] = i / 3;
      break;
    case 5:
      o[7] = i ^ 0x33;
      break;
    case 6:
      o[7] = ~i;
      break;
    default:
      o[7] = 12345;
  }
}

int main() {
  CUDA(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
  DeviceArray<int> out(8 * 64);
  run<<<1, 64>>>(out.get());
  FINISH();
  const std::vector<int> values = out.values();
  for (int column = 0; column < 8; ++column) {
    std::vector<int> picked;
    for (int i = 0; i < 64; ++i) picked.push_back(values[8 * i + column]);
    std::printf("%d: %d %d %d %016llx\n", column, picked[5], picked[22], picked[63],
                static_cast<unsigned long long>(digest(picked)));
  }
  CHECK(values[8 * 11] == 89);
}
