// Kernels whose parameters have every kind of layout.
struct Mixed {
  int a;
  double b[3];
  char c;
};
struct Large {
  char bytes[5000];
};

__device__ int bias = 3;

__global__ void mixed(float* out, Mixed mixed, char small, short odd) {
  out[threadIdx.x] = mixed.a + small + odd + bias;
}
extern "C" __global__ void no_parameters() {}
extern "C" __global__ void large(char* out, Large large, int index) { *out = large.bytes[index]; }
