// Surface objects: reads and writes of arrays of every shape, inside and outside of their borders.
#include "texture_tools.h"

namespace {

class Surface {
 public:
  explicit Surface(const cudaResourceDesc& resource) {
    CUDA(cudaCreateSurfaceObject(&object_, &resource));
  }
  ~Surface() { cudaDestroySurfaceObject(object_); }
  Surface(const Surface&) = delete;
  Surface& operator=(const Surface&) = delete;
  cudaSurfaceObject_t get() const { return object_; }

 private:
  cudaSurfaceObject_t object_ = 0;
};

std::vector<unsigned> counted(size_t count) {
  std::vector<unsigned> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<unsigned>(0x01010101 * i);
  return values;
}

void print_words(const char* name, const std::vector<unsigned>& words) {
  std::printf("%s:", name);
  for (const unsigned word : words) std::printf(" %x", word);
  std::printf("\n");
}

// Adds 1 to every texel, in each shape.
__global__ void increment_1d(cudaSurfaceObject_t surface, int width) {
  for (int x = threadIdx.x; x < width; x += blockDim.x) {
    surf1Dwrite(surf1Dread<unsigned>(surface, x * 4) + 1, surface, x * 4);
  }
}
__global__ void increment_2d(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x * 4, y = threadIdx.y;
  surf2Dwrite(surf2Dread<unsigned>(surface, x, y) + 1, surface, x, y);
}
__global__ void increment_3d(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x * 4, y = threadIdx.y, z = threadIdx.z;
  surf3Dwrite(surf3Dread<unsigned>(surface, x, y, z) + 1, surface, x, y, z);
}
__global__ void increment_layers(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x * 4, y = threadIdx.y, layer = threadIdx.z;
  surf2DLayeredwrite(surf2DLayeredread<unsigned>(surface, x, y, layer) + 1, surface, x, y, layer);
}
__global__ void increment_rows(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x * 4, layer = threadIdx.y;
  surf1DLayeredwrite(surf1DLayeredread<unsigned>(surface, x, layer) + 1, surface, x, layer);
}
__global__ void increment_faces(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x * 4, y = threadIdx.y, face = threadIdx.z;
  surfCubemapwrite(surfCubemapread<unsigned>(surface, x, y, face) + 1, surface, x, y, face);
}

// Runs a kernel over an array and checks that every texel was incremented once.
template <typename Launch>
void check_increment(const char* name, cudaExtent extent, unsigned flags, const Launch& launch) {
  const size_t rows = extent.height ? extent.height : 1, slices = extent.depth ? extent.depth : 1;
  const std::vector<unsigned> before = counted(extent.width * rows * slices);
  const Array<unsigned> array(extent, flags | cudaArraySurfaceLoadStore, before);
  const Surface surface(array.resource());
  launch(surface.get());
  FINISH();
  const std::vector<unsigned> after = array.values();
  for (size_t i = 0; i < before.size(); ++i) CHECK(after[i] == before[i] + 1);
  print_digest(name, after);
}

void shapes() {
  check_increment("1D", make_cudaExtent(100, 0, 0), 0,
                  [](cudaSurfaceObject_t s) { increment_1d<<<1, 64>>>(s, 100); });
  check_increment("2D", make_cudaExtent(13, 7, 0), 0,
                  [](cudaSurfaceObject_t s) { increment_2d<<<1, dim3(13, 7)>>>(s); });
  check_increment("3D", make_cudaExtent(7, 5, 3), 0,
                  [](cudaSurfaceObject_t s) { increment_3d<<<1, dim3(7, 5, 3)>>>(s); });
  check_increment("layers", make_cudaExtent(7, 5, 4), cudaArrayLayered,
                  [](cudaSurfaceObject_t s) { increment_layers<<<1, dim3(7, 5, 4)>>>(s); });
  check_increment("rows", make_cudaExtent(9, 0, 4), cudaArrayLayered,
                  [](cudaSurfaceObject_t s) { increment_rows<<<1, dim3(9, 4)>>>(s); });
  check_increment("cube", make_cudaExtent(4, 4, 6), cudaArrayCubemap,
                  [](cudaSurfaceObject_t s) { increment_faces<<<1, dim3(4, 4, 6)>>>(s); });
}

// An 8 x 4 surface of words, read inside and outside.
__global__ void read_around(cudaSurfaceObject_t surface, unsigned* out) {
  for (int x = -8; x <= 36; x += 4) {
    *out++ = surf2Dread<unsigned>(surface, x, 1, cudaBoundaryModeClamp);
    *out++ = surf2Dread<unsigned>(surface, x, 1, cudaBoundaryModeZero);
  }
  for (int y = -1; y <= 4; ++y) {
    *out++ = surf2Dread<unsigned>(surface, 4, y, cudaBoundaryModeClamp);
    *out++ = surf2Dread<unsigned>(surface, 4, y, cudaBoundaryModeZero);
  }
}

__global__ void write_around(cudaSurfaceObject_t surface) {
  surf2Dwrite(0xa0u, surface, -4, 0, cudaBoundaryModeZero);
  surf2Dwrite(0xa1u, surface, 32, 0, cudaBoundaryModeZero);
  surf2Dwrite(0xa2u, surface, 4, 4, cudaBoundaryModeZero);
  surf2Dwrite(0xa3u, surface, 8, 2, cudaBoundaryModeZero);
}

// Pieces of texels of other sizes: single bytes, halves, pairs and quadruples of words.
__global__ void read_sizes(cudaSurfaceObject_t surface, unsigned* out) {
  *out++ = surf2Dread<unsigned char>(surface, 8, 2);
  *out++ = surf2Dread<unsigned short>(surface, 8, 2);
  const uint2 pair = surf2Dread<uint2>(surface, 8, 2);
  *out++ = pair.x;
  *out++ = pair.y;
  const uint4 four = surf2Dread<uint4>(surface, 16, 2);
  *out++ = four.x;
  *out++ = four.w;
  const uchar4 bytes = surf2Dread<uchar4>(surface, 12, 3);
  *out++ = bytes.x + bytes.y + bytes.z + bytes.w;
}

void borders() {
  const Array<unsigned> array(8, 4, counted(32), cudaArraySurfaceLoadStore);
  const Surface surface(array.resource());
  const DeviceArray<unsigned> around(36), sizes(7);
  read_around<<<1, 1>>>(surface.get(), around.get());
  FINISH();
  print_words("around", around.values());
  read_sizes<<<1, 1>>>(surface.get(), sizes.get());
  FINISH();
  print_words("sizes", sizes.values());
  write_around<<<1, 1>>>(surface.get());
  FINISH();
  print_words("written", array.values());
}

// A kernel writes to a surface, and the next kernel reads the values from a texture of the same
// array.
__global__ void write_floats(cudaSurfaceObject_t surface) {
  const float4 value = make_float4(threadIdx.x, threadIdx.y, threadIdx.x * threadIdx.y, 1);
  surf2Dwrite(value, surface, threadIdx.x * sizeof(float4), threadIdx.y);
}
__global__ void read_floats(cudaTextureObject_t texture, float* out) {
  const float4 value = tex2D<float4>(texture, threadIdx.x + 0.75f, threadIdx.y + 1);
  out[threadIdx.y * blockDim.x + threadIdx.x] = value.x + value.y + value.z;
}

void with_textures() {
  const Array<float4> array(8, 8, std::vector<float4>(64), cudaArraySurfaceLoadStore);
  const Surface surface(array.resource());
  const Texture texture(array.resource(),
                        sampler(cudaAddressModeClamp, cudaFilterModeLinear, false));
  const DeviceArray<float> out(64);
  write_floats<<<1, dim3(8, 8)>>>(surface.get());
  read_floats<<<1, dim3(8, 8)>>>(texture.get(), out.get());
  FINISH();
  const std::vector<float> values = out.values();
  print_values("through a texture", {values.begin(), values.begin() + 16});
  print_digest("all", values);
  cudaResourceDesc told{};
  CUDA(cudaGetSurfaceObjectResourceDesc(&told, surface.get()));
  CHECK(told.resType == cudaResourceTypeArray && told.res.array.array == array.get());
}

}  // namespace

int main() {
  shapes();
  borders();
  with_textures();
  std::printf("done\n");
  return 0;
}
