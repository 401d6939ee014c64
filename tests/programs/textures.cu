// Texture objects over arrays of every format and shape, linear and pitched memory: addressing,
// filters, levels, layers, cube maps, gathers and views. Coordinates and texels are chosen so that
// every result is exact.
#include <algorithm>
#include <cstring>

#include "texture_tools.h"

namespace {

// The ways to read a texture. Every place is (x, y, z, layer).
enum class Read { k1d, k2d, k3d, kLayers1d, kLayers2d, kCube, kCubes };

template <Read kRead, typename T>
__device__ T read_at(cudaTextureObject_t texture, float4 at) {
  const int layer = static_cast<int>(at.w);
  switch (kRead) {
    case Read::k1d:
      return tex1D<T>(texture, at.x);
    case Read::k2d:
      return tex2D<T>(texture, at.x, at.y);
    case Read::k3d:
      return tex3D<T>(texture, at.x, at.y, at.z);
    case Read::kLayers1d:
      return tex1DLayered<T>(texture, at.x, layer);
    case Read::kLayers2d:
      return tex2DLayered<T>(texture, at.x, at.y, layer);
    case Read::kCube:
      return texCubemap<T>(texture, at.x, at.y, at.z);
    default:
      return texCubemapLayered<T>(texture, at.x, at.y, at.z, layer);
  }
}

template <Read kRead, typename T>
__global__ void read_all(cudaTextureObject_t texture, const float4* at, T* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = read_at<kRead, T>(texture, at[i]);
}

template <Read kRead, typename T = float>
std::vector<T> read(const Texture& texture, const std::vector<float4>& places) {
  const DeviceArray<float4> at(places);
  const DeviceArray<T> out(places.size());
  const int count = static_cast<int>(places.size());
  read_all<kRead><<<(count + 63) / 64, 64>>>(texture.get(), at.get(), out.get(), count);
  FINISH();
  return out.values();
}

// `count` places along a line, from the first place on.
std::vector<float4> line(float4 first, float4 step, int count) {
  std::vector<float4> places;
  for (int i = 0; i < count; ++i) {
    places.push_back(make_float4(first.x + i * step.x, first.y + i * step.y, first.z + i * step.z,
                                 first.w + i * step.w));
  }
  return places;
}

// Places from -2 to 10 in steps of 1/256.
std::vector<float4> scattered(int count, float scale) {
  Random random(7);
  std::vector<float4> places;
  const auto coordinate = [&] { return (random.below(12 * 256) / 256.0f - 2) * scale; };
  for (int i = 0; i < count; ++i) {
    const float x = coordinate(), y = coordinate(), z = coordinate();
    places.push_back(make_float4(x, y, z, static_cast<float>(i % 4)));
  }
  return places;
}

constexpr cudaTextureAddressMode kModes[] = {cudaAddressModeWrap, cudaAddressModeClamp,
                                             cudaAddressModeMirror, cudaAddressModeBorder};
constexpr const char* kModeNames[] = {"wrap", "clamp", "mirror", "border"};

template <typename T>
std::vector<T> noise(size_t count) {
  Random random(sizeof(T));
  std::vector<T> values(count);
  unsigned char* bytes = reinterpret_cast<unsigned char*>(values.data());
  for (size_t i = 0; i < count * sizeof(T); ++i) {
    bytes[i] = static_cast<unsigned char>(random.next() >> 4);
  }
  return values;
}

// Every texel of a 16 x 8 array is read back as it is, and as a normalised float.
template <typename T>
void check_integers(const char* name) {
  const std::vector<T> texels = noise<T>(16 * 8);
  const Array<T> array(16, 8, texels);
  std::vector<float4> places;
  for (int i = 0; i < 128; ++i) places.push_back(make_float4(i % 16 + 0.5f, i / 16 + 0.5f, 0, 0));
  cudaTextureDesc how = sampler(cudaAddressModeClamp, cudaFilterModePoint, false);
  const Texture plain(array.resource(), how);
  const std::vector<T> read_back = read<Read::k2d, T>(plain, places);
  CHECK(std::equal(texels.begin(), texels.end(), read_back.begin(),
                   [](const T& a, const T& b) { return std::memcmp(&a, &b, sizeof(T)) == 0; }));
  if (cudaCreateChannelDesc<T>().x == 32) return;
  how.readMode = cudaReadModeNormalizedFloat;
  const Texture normalised(array.resource(), how);
  const std::vector<float4> floats = read<Read::k2d, float4>(normalised, places);
  std::printf("%s as floats: %.6g %.6g, ", name, floats[5].x, floats[77].w);
  print_digest("all", floats);
}

void formats() {
  check_integers<uchar1>("uchar1");
  check_integers<uchar2>("uchar2");
  check_integers<uchar4>("uchar4");
  check_integers<char1>("char1");
  check_integers<char2>("char2");
  check_integers<char4>("char4");
  check_integers<ushort1>("ushort1");
  check_integers<ushort2>("ushort2");
  check_integers<ushort4>("ushort4");
  check_integers<short1>("short1");
  check_integers<short2>("short2");
  check_integers<short4>("short4");
  check_integers<uint1>("uint1");
  check_integers<uint2>("uint2");
  check_integers<uint4>("uint4");
  check_integers<int1>("int1");
  check_integers<int2>("int2");
  check_integers<int4>("int4");

  const std::vector<unsigned short> halves = {0x3c00, 0xc100, 0x0001, 0x7bff, 0x8000, 0x3555};
  const cudaChannelFormatDesc half = cudaCreateChannelDescHalf();
  cudaArray_t array = nullptr;
  CUDA(cudaMallocArray(&array, &half, 6, 1));
  CUDA(cudaMemcpy2DToArray(array, 0, 0, halves.data(), 12, 12, 1, cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.res.array.array = array;
  const cudaTextureDesc how = sampler(cudaAddressModeClamp, cudaFilterModePoint, false);
  print_values("halves", read<Read::k2d>(Texture(resource, how), line(make_float4(0.5f, 0, 0, 0),
                                                                      make_float4(1, 0, 0, 0), 6)));
  CUDA(cudaFreeArray(array));

  const Array<float> one(1, 1, {7});
  const float4 missing =
      read<Read::k2d, float4>(Texture(one.resource(), how), {make_float4(0, 0, 0, 0)})[0];
  std::printf("channels of one: %g %g %g %g\n", missing.x, missing.y, missing.z, missing.w);

  const Array<uchar4> srgb(2, 1, {make_uchar4(0, 255, 0, 51), make_uchar4(255, 188, 0, 255)});
  cudaTextureDesc gamma = how;
  gamma.readMode = cudaReadModeNormalizedFloat;
  gamma.sRGB = 1;
  const auto colors =
      read<Read::k2d, float4>(Texture(srgb.resource(), gamma),
                              line(make_float4(0.5f, 0, 0, 0), make_float4(1, 0, 0, 0), 2));
  for (const float4 color : colors) {
    std::printf("sRGB: %.2f %.2f %.2f %.2f\n", color.x, color.y, color.z, color.w);
  }
}

void addressing() {
  const Array<float> array(8, 1, {0, 1, 2, 3, 4, 5, 6, 7});
  for (int mode = 0; mode < 4; ++mode) {
    for (const auto filter : {cudaFilterModePoint, cudaFilterModeLinear}) {
      for (const bool normalised : {false, true}) {
        cudaTextureDesc how = sampler(kModes[mode], filter, normalised);
        how.borderColor[0] = 64;
        const Texture texture(array.resource(), how);
        const auto places =
            normalised
                ? line(make_float4(-1.21875f, 0.5f, 0, 0), make_float4(0.15625f, 0, 0, 0), 24)
                : line(make_float4(-2.25f, 0.5f, 0, 0), make_float4(0.625f, 0, 0, 0), 24);
        std::printf("%s %s ", kModeNames[mode],
                    filter == cudaFilterModePoint ? "nearest" : "linear");
        print_values(normalised ? "normalised" : "texels", read<Read::k2d>(texture, places));
      }
    }
  }
}

void filters() {
  const Array<float> flat(8, 8, small_numbers(64, 1));
  const Array<float> volume(make_cudaExtent(8, 8, 8), 0, small_numbers(512, 2));
  for (int mode = 0; mode < 4; ++mode) {
    cudaTextureDesc how = sampler(kModes[mode], cudaFilterModeLinear, true);
    how.borderColor[0] = 32;
    const auto places = scattered(2000, 0.125f);
    const Texture in_flat(flat.resource(), how), in_volume(volume.resource(), how);
    std::printf("%s: ", kModeNames[mode]);
    print_digest("2D", read<Read::k2d>(in_flat, places));
    std::printf("%s: ", kModeNames[mode]);
    print_digest("3D", read<Read::k3d>(in_volume, places));
  }
  const Texture texture(flat.resource(),
                        sampler(cudaAddressModeClamp, cudaFilterModeLinear, false));
  print_values("a line", read<Read::k2d>(texture, line(make_float4(0.5f, 0.5f, 0, 0),
                                                       make_float4(0.3125f, 0.6875f, 0, 0), 10)));
}

__global__ void fetch(cudaTextureObject_t texture, int first, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    out[i] = tex1Dfetch<float>(texture, first + i);
}

void memory() {
  const DeviceArray<float> numbers(small_numbers(64 * 8, 3));
  cudaResourceDesc linear{};
  linear.resType = cudaResourceTypeLinear;
  linear.res.linear.devPtr = numbers.get();
  linear.res.linear.desc = cudaCreateChannelDesc<float>();
  linear.res.linear.sizeInBytes = 10 * sizeof(float);
  const cudaTextureDesc how = sampler(cudaAddressModeClamp, cudaFilterModeLinear, false);
  {
    const Texture texture(linear, how);
    const DeviceArray<float> out(14);
    fetch<<<1, 32>>>(texture.get(), -2, out.get(), 14);
    FINISH();
    print_values("fetched, with zeros outside", out.values());
  }
  cudaResourceDesc pitched{};
  pitched.resType = cudaResourceTypePitch2D;
  pitched.res.pitch2D.devPtr = numbers.get();
  pitched.res.pitch2D.desc = linear.res.linear.desc;
  pitched.res.pitch2D.width = 48;
  pitched.res.pitch2D.height = 8;
  pitched.res.pitch2D.pitchInBytes = 64 * sizeof(float);
  const auto places = line(make_float4(-1, 0.5f, 0, 0), make_float4(4.75f, 0.625f, 0, 0), 12);
  print_values("pitched", read<Read::k2d>(Texture(pitched, how), places));
}

void layers() {
  const auto how = sampler(cudaAddressModeClamp, cudaFilterModeLinear, false);
  const Array<float> rows(make_cudaExtent(8, 0, 4), cudaArrayLayered, small_numbers(32, 4));
  const Array<float> images(make_cudaExtent(8, 8, 4), cudaArrayLayered, small_numbers(256, 5));
  const auto places = scattered(500, 1);
  print_digest("1D", read<Read::kLayers1d>(Texture(rows.resource(), how), places));
  print_digest("2D", read<Read::kLayers2d>(Texture(images.resource(), how), places));
  print_values("beyond the last", read<Read::kLayers2d>(Texture(images.resource(), how),
                                                        {make_float4(3.5f, 2.5f, 0, 3),
                                                         make_float4(3.5f, 2.5f, 0, 9)}));
}

// Directions to 1/4 and 3/4 of every face, and on the way to an edge.
std::vector<float4> directions() {
  std::vector<float4> places;
  for (int axis = 0; axis < 3; ++axis) {
    for (const float sign : {1.0f, -1.0f}) {
      for (int k = 0; k < 6; ++k) {
        float at[3];
        at[axis] = sign;
        at[(axis + 1) % 3] = k < 4 ? (k & 1 ? 0.5f : -0.5f) : 0.9375f;
        at[(axis + 2) % 3] = k < 4 ? (k & 2 ? 0.5f : -0.5f) : 0.25f;
        places.push_back(make_float4(at[0], at[1], at[2], static_cast<float>(k % 2)));
      }
    }
  }
  return places;
}

void cubes() {
  const Array<float> cube(make_cudaExtent(4, 4, 6), cudaArrayCubemap, small_numbers(96, 6));
  const Array<float> two(make_cudaExtent(4, 4, 12), cudaArrayCubemap | cudaArrayLayered,
                         small_numbers(192, 7));
  const auto places = directions();
  cudaTextureDesc how = sampler(cudaAddressModeClamp, cudaFilterModePoint, true);
  print_values("nearest", read<Read::kCube>(Texture(cube.resource(), how), places));
  print_values("layered", read<Read::kCubes>(Texture(two.resource(), how), places));
  how.filterMode = cudaFilterModeLinear;
  print_values("linear", read<Read::kCube>(Texture(cube.resource(), how), places));
  how.seamlessCubemap = 1;
  print_values("seamless", read<Read::kCube>(Texture(cube.resource(), how), places));
}

__global__ void read_levels(cudaTextureObject_t texture, const float2* at, const float* levels,
                            float* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    out[i] = tex2DLod<float>(texture, at[i].x, at[i].y, levels[i]);
  }
}

__global__ void read_steps(cudaTextureObject_t texture, float* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const float step = (1 << i) * 0.0625f;
    out[i] = tex2DGrad<float>(texture, 0.5f, 0.5f, make_float2(step, 0), make_float2(0, step / 2));
  }
}

// 16 x 16 texels and four smaller levels, whose texels are about 1000 times the level.
cudaMipmappedArray_t make_levels() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaMipmappedArray_t array = nullptr;
  CUDA(cudaMallocMipmappedArray(&array, &format, make_cudaExtent(16, 16, 0), 5));
  for (unsigned l = 0; l < 5; ++l) {
    cudaArray_t level = nullptr;
    CUDA(cudaGetMipmappedArrayLevel(&level, array, l));
    const size_t size = 16 >> l;
    std::vector<float> texels = small_numbers(size * size, 10 + l);
    for (float& texel : texels) texel += 1000.0f * l;
    CUDA(cudaMemcpy2DToArray(level, 0, 0, texels.data(), size * 4, size * 4, size,
                             cudaMemcpyHostToDevice));
  }
  return array;
}

void print_levels(const char* name, const cudaResourceDesc& resource, const cudaTextureDesc& how,
                  const cudaResourceViewDesc* view = nullptr) {
  std::vector<float2> places;
  std::vector<float> levels;
  for (int i = 0; i < 24; ++i) {
    places.push_back(
        make_float2(0.03125f + (i * 5 % 16) * 0.0625f, 0.03125f + (i * 3 % 16) * 0.0625f));
    levels.push_back(-0.5f + i * 0.25f);
  }
  const Texture texture(resource, how, view);
  const DeviceArray<float2> at(places);
  const DeviceArray<float> which(levels), out(places.size());
  read_levels<<<1, 32>>>(texture.get(), at.get(), which.get(), out.get(), 24);
  FINISH();
  print_values(name, out.values());
}

void levels() {
  cudaMipmappedArray_t array = make_levels();
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = array;
  cudaTextureDesc how = sampler(cudaAddressModeWrap, cudaFilterModePoint, true);
  print_levels("nearest", resource, how);
  how.mipmapFilterMode = cudaFilterModeLinear;
  print_levels("between two", resource, how);
  how.mipmapLevelBias = 0.75f;
  how.minMipmapLevelClamp = 0.5f;
  how.maxMipmapLevelClamp = 2.25f;
  print_levels("bias and clamps", resource, how);
  how = sampler(cudaAddressModeWrap, cudaFilterModePoint, true);
  {
    const Texture texture(resource, how);
    const DeviceArray<float> out(6);
    read_steps<<<1, 32>>>(texture.get(), out.get(), 6);
    FINISH();
    print_values("steps", out.values());
    print_values("without a level", read<Read::k2d>(texture, {make_float4(0.5f, 0.5f, 0, 0)}));
  }
  cudaResourceViewDesc view{};
  view.format = cudaResViewFormatFloat1;
  view.width = view.height = 16;
  view.firstMipmapLevel = 1;
  view.lastMipmapLevel = 3;
  print_levels("a view of levels 1 to 3", resource, how, &view);
  CUDA(cudaFreeMipmappedArray(array));
}

__global__ void gather(cudaTextureObject_t texture, const float4* at, float4* out, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    switch (i % 4) {
      case 0:
        out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 0);
        break;
      case 1:
        out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 1);
        break;
      case 2:
        out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 2);
        break;
      default:
        out[i] = tex2Dgather<float4>(texture, at[i].x, at[i].y, 3);
        break;
    }
  }
}

void gathers() {
  std::vector<float4> texels(8 * 8);
  for (int i = 0; i < 64; ++i) texels[i] = make_float4(i, 100 + i, 200 + i, 300 + i);
  const Array<float4> array(8, 8, texels, cudaArrayTextureGather);
  const Texture texture(array.resource(),
                        sampler(cudaAddressModeClamp, cudaFilterModePoint, false));
  const auto places = line(make_float4(-0.25f, 0.25f, 0, 0), make_float4(1.125f, 0.875f, 0, 0), 9);
  const DeviceArray<float4> at(places), out(places.size());
  gather<<<1, 32>>>(texture.get(), at.get(), out.get(), 9);
  FINISH();
  for (const float4 value : out.values()) {
    std::printf("gathered: %g %g %g %g\n", value.x, value.y, value.z, value.w);
  }
}

// The descriptors that the runtime returns, and those that it refuses.
void descriptors() {
  const Array<float> array(8, 8, small_numbers(64, 8));
  cudaTextureDesc how = sampler(cudaAddressModeMirror, cudaFilterModeLinear, true);
  const Texture texture(array.resource(), how);
  cudaResourceDesc resource{};
  CUDA(cudaGetTextureObjectResourceDesc(&resource, texture.get()));
  CHECK(resource.resType == cudaResourceTypeArray && resource.res.array.array == array.get());
  cudaTextureDesc told{};
  CUDA(cudaGetTextureObjectTextureDesc(&told, texture.get()));
  // Drivers do not report the border color.
  CHECK(told.addressMode[1] == cudaAddressModeMirror && told.filterMode == cudaFilterModeLinear &&
        told.normalizedCoords == 1);
  cudaChannelFormatDesc format{};
  cudaExtent extent{};
  unsigned flags = 99;
  CUDA(cudaArrayGetInfo(&format, &extent, &flags, array.get()));
  std::printf("array: %zu x %zu x %zu, flags %u, %d bits\n", extent.width, extent.height,
              extent.depth, flags, format.x);

  const auto refused = [&](const cudaResourceDesc& of) {
    cudaTextureObject_t object = 0;
    const cudaError_t error = cudaCreateTextureObject(&object, &of, &how, nullptr);
    cudaGetLastError();
    return cudaGetErrorName(error);
  };
  const DeviceArray<float> numbers(256);
  cudaResourceDesc bad{};
  bad.resType = cudaResourceTypeLinear;
  bad.res.linear = {numbers.get() + 1, cudaCreateChannelDesc<float>(), 64};
  std::printf("misaligned memory: %s\n", refused(bad));
  bad.resType = cudaResourceTypePitch2D;
  bad.res.pitch2D = {numbers.get(), cudaCreateChannelDesc<float>(), 16, 8, 100};
  std::printf("misaligned pitch: %s\n", refused(bad));
}

}  // namespace

int main() {
  formats();
  addressing();
  filters();
  memory();
  layers();
  cubes();
  levels();
  gathers();
  descriptors();
  std::printf("done\n");
  return 0;
}
