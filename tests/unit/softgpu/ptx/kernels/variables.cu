// Variables of every state space and kind of initialiser.
struct Link {
  int weight;
  const int* target;
  char tag;
};

__device__ int counter = 42;
__device__ short table[6] = {1, -2, 3};
__device__ const float scale = 1.5f;
__constant__ double weights[4] = {0.25, 0.5};
__constant__ unsigned char text[] = "twelve bytes";
__device__ int* pointer = &counter;
__device__ Link link = {7, &counter, 'x'};
__managed__ long long shared_with_host = -1;
extern __shared__ float4 dynamic[];

__device__ float twice(float x) { return 2 * x; }
__device__ float half_of(float x) { return x / 2; }
__device__ float (*functions[2])(float) = {twice, half_of};

extern "C" __global__ void variables(float* out, Link by_value, char small, double wide,
                                     int which) {
  __shared__ double tile[32];
  const int lane = threadIdx.x;
  tile[lane] = weights[lane & 3] + table[lane % 6];
  dynamic[lane] = make_float4(1, 2, 3, 4);
  __syncthreads();
  int local[8];
  for (int i = 0; i < 8; ++i) local[i] = i * which + text[i];
  out[lane] = tile[31 - lane] + dynamic[lane ^ 1].y + *pointer + *link.target + by_value.weight +
              small + wide + local[which & 7] + scale + shared_with_host +
              functions[which & 1](out[lane]);
  atomicAdd(&counter, 1);
}
