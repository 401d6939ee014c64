// Calls of every kind, recursion, loops, switches, printf, assert and the device heap.
#include <cassert>
#include <cstdio>

struct Shape {
  __device__ virtual int area() const = 0;
};
struct Square : Shape {
  int side;
  __device__ explicit Square(int s) : side(s) {}
  __device__ int area() const override { return side * side; }
};
struct Strip : Shape {
  __device__ int area() const override { return 1; }
};

__device__ __noinline__ int ackermann(int m, int n) {
  if (m == 0) return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__device__ int choose(int which, int x) {
  switch (which) {
    case 0:
      return x * 3;
    case 1:
      return x / 7;
    case 2:
      return x % 5;
    case 3:
      return x ^ 0x55;
    case 4:
      return __popc(x);
    case 5:
      return __clz(x);
    case 6:
      return x << 3;
    case 7:
      return __brev(x);
    default:
      return -x;
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) control(int* out, int which) {
  Shape* shape = which & 1 ? static_cast<Shape*>(new Square(which)) : new Strip;
  int sum = shape->area() + ackermann(2, which & 3);
  for (int i = 0; i < out[0]; ++i) sum += choose((which + i) & 15, sum);
  assert(sum != 12345);
  if (threadIdx.x == 0) printf("sum %d of %f %s\n", sum, 1.5, "text");
  if (sum == -1) __trap();
  delete shape;
  out[threadIdx.x] = sum;
}
