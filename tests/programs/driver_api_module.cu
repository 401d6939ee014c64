// The image that driver_api loads from a file.
struct Large {
  char bytes[5000];
};

extern "C" __global__ void no_parameters() {}
extern "C" __global__ void large(char* out, Large large, int index) { *out = large.bytes[index]; }
extern "C" __global__ void unused(double* out, short a) { *out = a; }
