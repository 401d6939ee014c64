// Texture and surface objects through the driver: descriptors, and kernels that use them.
#include <cstring>
#include <future>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

// read(out, texture, x, y): a texel at float coordinates. increment(surface, x, y): adds 1 to a
// word at a byte offset. copy(x, y): from a texture reference to a surface reference. size(out,
// texture, surface): width, height, depth of the texture, height of the surface.
constexpr char kPtx[] = R"(
.version 8.0
.target sm_75
.address_size 64
.visible .entry read(.param .u64 out, .param .u64 object, .param .f32 x, .param .f32 y)
{
  .reg .pred %p<2>;
  .reg .f32 %f<7>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [object];
  ld.param.f32 %f1, [x];
  ld.param.f32 %f2, [y];
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}|%p1, [%rd2, {%f1, %f2}];
  cvta.to.global.u64 %rd3, %rd1;
  @%p1 st.global.v4.f32 [%rd3], {%f3, %f4, %f5, %f6};
  ret;
}
.visible .entry increment(.param .u64 object, .param .u32 x, .param .u32 y)
{
  .reg .b32 %r<5>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [object];
  ld.param.u32 %r1, [x];
  ld.param.u32 %r2, [y];
  suld.b.2d.b32.trap {%r3}, [%rd1, {%r1, %r2}];
  add.s32 %r4, %r3, 1;
  sust.b.2d.b32.trap [%rd1, {%r1, %r2}], {%r4};
  ret;
}
.global .texref picture;
.global .surfref canvas;
.visible .entry copy(.param .u32 x, .param .u32 y)
{
  .reg .f32 %f<7>;
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [x];
  ld.param.u32 %r2, [y];
  cvt.rn.f32.u32 %f1, %r1;
  cvt.rn.f32.u32 %f2, %r2;
  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [picture, {%f1, %f2}];
  shl.b32 %r3, %r1, 2;
  sust.b.2d.b32.trap [canvas, {%r3, %r2}], {%f3};
  ret;
}
.visible .entry size(.param .u64 out, .param .u64 object, .param .u64 surface)
{
  .reg .b32 %r<5>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [object];
  ld.param.u64 %rd4, [surface];
  txq.width.b32 %r1, [%rd2];
  txq.height.b32 %r2, [%rd2];
  txq.depth.b32 %r3, [%rd2];
  suq.height.b32 %r4, [%rd4];
  cvta.to.global.u64 %rd3, %rd1;
  st.global.v4.u32 [%rd3], {%r1, %r2, %r3, %r4};
  ret;
}
)";

class TextureTest : public CoreTest {
 protected:
  void SetUp() override {
    CoreTest::SetUp();
    CUDA_OK(cuModuleLoadData(&module_, kPtx));
    out_ = allocate(4096);
    for (CUaddress_mode& mode : sampler_.addressMode) mode = CU_TR_ADDRESS_MODE_CLAMP;
  }
  void TearDown() override {
    if (module_) {
      EXPECT_EQ(cuModuleUnload(module_), CUDA_SUCCESS);
    }
    CoreTest::TearDown();
  }

  CUfunction kernel(const char* name) const {
    CUfunction function = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&function, module_, name), CUDA_SUCCESS);
    return function;
  }
  template <class... Args>
  CUresult run(const char* name, Args... args) const {
    void* parameters[] = {&args...};
    EXPECT_EQ(cuLaunchKernel(kernel(name), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
              CUDA_SUCCESS);
    return cuCtxSynchronize();
  }
  // The first channel of the texel that kernel `read` reads.
  float texel(CUtexObject object, float x, float y) const {
    EXPECT_EQ(run("read", out_, object, x, y), CUDA_SUCCESS);
    float value = 0;
    std::memcpy(&value, read(out_, 4).data(), 4);
    return value;
  }

  // An array of floats: texel (x, y) is 10 * y + x.
  static CUarray array(size_t width, size_t height, unsigned flags = 0) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{width, height, 0, CU_AD_FORMAT_FLOAT, 1, flags};
    CUarray made = nullptr;
    EXPECT_EQ(cuArray3DCreate_v2(&made, &descriptor), CUDA_SUCCESS);
    fill(made, width, height);
    return made;
  }
  static void fill(CUarray array, size_t width, size_t height, float first = 0) {
    std::vector<float> texels;
    for (size_t y = 0; y < height; ++y) {
      for (size_t x = 0; x < width; ++x) texels.push_back(first + static_cast<float>(10 * y + x));
    }
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = texels.data();
    copy.srcPitch = copy.WidthInBytes = width * sizeof(float);
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.Height = height;
    EXPECT_EQ(cuMemcpy2D_v2(&copy), CUDA_SUCCESS);
  }
  static CUDA_RESOURCE_DESC resource(CUarray array) {
    CUDA_RESOURCE_DESC made{};
    made.resType = CU_RESOURCE_TYPE_ARRAY;
    made.res.array.hArray = array;
    return made;
  }
  CUresult create(const CUDA_RESOURCE_DESC& resource, CUtexObject* object) const {
    return cuTexObjectCreate(object, &resource, &sampler_, nullptr);
  }
  // The result of creating a texture object with these descriptors.
  CUresult accept(const CUDA_RESOURCE_DESC& resource,
                  const CUDA_RESOURCE_VIEW_DESC* view = nullptr) const {
    CUtexObject object = 0;
    const CUresult result = cuTexObjectCreate(&object, &resource, &sampler_, view);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(cuTexObjectDestroy(object), CUDA_SUCCESS);
    }
    return result;
  }

  CUmodule module_ = nullptr;
  CUdeviceptr out_ = 0;
  CUDA_TEXTURE_DESC sampler_{};
};

TEST_F(TextureTest, KernelsReadArrays) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4));
  CUtexObject nearest = 0, filtered = 0;
  CUDA_OK(create(of, &nearest));
  sampler_.filterMode = CU_TR_FILTER_MODE_LINEAR;
  CUDA_OK(create(of, &filtered));
  EXPECT_EQ(texel(nearest, 3.75f, 2.5f), 23);
  EXPECT_EQ(texel(filtered, 3.75f, 2.5f), 23.25f);
  CUDA_RESOURCE_DESC told{};
  CUDA_OK(cuTexObjectGetResourceDesc(&told, nearest));
  EXPECT_EQ(told.res.array.hArray, of.res.array.hArray);
  CUDA_TEXTURE_DESC sampler{};
  CUDA_OK(cuTexObjectGetTextureDesc(&sampler, filtered));
  EXPECT_EQ(sampler.filterMode, CU_TR_FILTER_MODE_LINEAR);
  CUDA_OK(cuTexObjectDestroy(nearest));
  EXPECT_EQ(cuTexObjectGetTextureDesc(&sampler, nearest), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuTexObjectDestroy(filtered));
  CUDA_OK(cuArrayDestroy(of.res.array.hArray));
}

TEST_F(TextureTest, KernelsReadPitchedMemory) {
  const CUdeviceptr memory = allocate(128 * 4);
  std::vector<uint8_t> bytes(128 * 4);
  const float texels[] = {1, 5};
  std::memcpy(&bytes[128], &texels[0], 4);
  std::memcpy(&bytes[256], &texels[1], 4);
  write(memory, bytes);
  CUDA_RESOURCE_DESC of{};
  of.resType = CU_RESOURCE_TYPE_PITCH2D;
  of.res.pitch2D = {memory, CU_AD_FORMAT_FLOAT, 1, 16, 4, 128};
  sampler_.filterMode = CU_TR_FILTER_MODE_LINEAR;
  CUtexObject object = 0;
  CUDA_OK(create(of, &object));
  EXPECT_EQ(texel(object, 0.5f, 2), 3);
  CUDA_OK(cuTexObjectDestroy(object));
}

TEST_F(TextureTest, ViewsChooseLevels) {
  const CUDA_ARRAY3D_DESCRIPTOR descriptor{16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray mipmapped = nullptr;
  CUDA_OK(cuMipmappedArrayCreate(&mipmapped, &descriptor, 3));
  for (unsigned l = 0; l < 3; ++l) {
    CUarray level = nullptr;
    CUDA_OK(cuMipmappedArrayGetLevel(&level, mipmapped, l));
    fill(level, 16 >> l, 16 >> l, static_cast<float>(1000 * l));
  }
  CUDA_RESOURCE_DESC of{};
  of.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  of.res.mipmap.hMipmappedArray = mipmapped;
  sampler_.flags = CU_TRSF_NORMALIZED_COORDINATES;
  sampler_.maxMipmapLevelClamp = 10;
  CUtexObject object = 0;
  CUDA_OK(create(of, &object));
  EXPECT_EQ(texel(object, 0, 0), 0);
  CUDA_OK(cuTexObjectDestroy(object));
  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_FLOAT_1X32;
  view.width = view.height = 16;
  view.firstMipmapLevel = view.lastMipmapLevel = 1;
  CUDA_OK(cuTexObjectCreate(&object, &of, &sampler_, &view));
  EXPECT_EQ(texel(object, 0, 0), 1000);
  CUDA_OK(cuTexObjectDestroy(object));
  // All levels from level 1 on.
  view.lastMipmapLevel = ~0u;
  CUDA_OK(cuTexObjectCreate(&object, &of, &sampler_, &view));
  EXPECT_EQ(texel(object, 0, 0), 1000);
  CUDA_OK(cuTexObjectDestroy(object));
  CUDA_OK(cuMipmappedArrayDestroy(mipmapped));
}

TEST_F(TextureTest, KernelsReadAndWriteSurfaces) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4, CUDA_ARRAY3D_SURFACE_LDST));
  CUsurfObject surface = 0;
  CUDA_OK(cuSurfObjectCreate(&surface, &of));
  CUtexObject texture = 0;
  CUDA_OK(create(of, &texture));
  uint32_t before = 0, after = 0;
  const float was = texel(texture, 3.5f, 2.5f);
  std::memcpy(&before, &was, 4);
  CUDA_OK(run("increment", surface, 12u, 2u));
  const float is = texel(texture, 3.5f, 2.5f);
  std::memcpy(&after, &is, 4);
  EXPECT_EQ(after, before + 1);
  CUDA_OK(run("size", out_, texture, surface));
  uint32_t size[4] = {};
  std::memcpy(size, read(out_, 16).data(), 16);
  EXPECT_EQ(size[0], 8u);
  EXPECT_EQ(size[1], 4u);
  EXPECT_EQ(size[2], 0u);
  EXPECT_EQ(size[3], 4u);
  CUDA_RESOURCE_DESC told{};
  CUDA_OK(cuSurfObjectGetResourceDesc(&told, surface));
  EXPECT_EQ(told.res.array.hArray, of.res.array.hArray);
  CUDA_OK(cuSurfObjectDestroy(surface));
  CUDA_OK(cuTexObjectDestroy(texture));
}

TEST_F(TextureTest, DescriptorsAreChecked) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4));
  CUDA_RESOURCE_DESC bad = of;
  bad.flags = 1;
  EXPECT_EQ(accept(bad), CUDA_ERROR_INVALID_VALUE);
  bad = of;
  bad.resType = static_cast<CUresourcetype>(7);
  EXPECT_EQ(accept(bad), CUDA_ERROR_INVALID_VALUE);

  CUDA_RESOURCE_DESC linear{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear = {out_, CU_AD_FORMAT_FLOAT, 1, 4096};
  EXPECT_EQ(accept(linear), CUDA_SUCCESS);
  linear.res.linear.devPtr += 4;
  EXPECT_EQ(accept(linear), CUDA_ERROR_INVALID_VALUE);
  linear.res.linear = {out_, CU_AD_FORMAT_FLOAT, 3, 4096};
  EXPECT_EQ(accept(linear), CUDA_ERROR_INVALID_VALUE);

  CUDA_RESOURCE_DESC pitched{};
  pitched.resType = CU_RESOURCE_TYPE_PITCH2D;
  pitched.res.pitch2D = {out_, CU_AD_FORMAT_FLOAT, 1, 32, 8, 100};
  EXPECT_EQ(accept(pitched), CUDA_ERROR_INVALID_VALUE);

  CUDA_RESOURCE_VIEW_DESC view{};
  view.format = CU_RES_VIEW_FORMAT_UINT_1X32;
  view.width = 8;
  view.height = 4;
  EXPECT_EQ(accept(of, &view), CUDA_SUCCESS);
  view.width = 7;
  EXPECT_EQ(accept(of, &view), CUDA_ERROR_INVALID_VALUE);

  CUsurfObject surface = 0;
  EXPECT_EQ(cuSurfObjectCreate(&surface, &linear), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuArrayDestroy(of.res.array.hArray));
}

TEST_F(TextureTest, KernelsWithoutTheirArrayFault) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4));
  CUtexObject object = 0;
  CUDA_OK(create(of, &object));
  CUDA_OK(cuArrayDestroy(of.res.array.hArray));
  EXPECT_EQ(run("read", out_, object, 0.5f, 0.5f), CUDA_ERROR_ILLEGAL_ADDRESS);
  module_ = nullptr;  // goes with the failed context
}

TEST_F(TextureTest, QueuedKernelsOutliveTheirObject) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4));
  CUtexObject object = 0;
  CUDA_OK(create(of, &object));
  CUstream stream = nullptr;
  CUDA_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::promise<void> go;
  CUDA_OK(cuLaunchHostFunc(
      stream, [](void* promise) { static_cast<std::promise<void>*>(promise)->get_future().wait(); },
      &go));
  float x = 2.5f, y = 1.5f;
  void* parameters[] = {&out_, &object, &x, &y};
  CUDA_OK(cuLaunchKernel(kernel("read"), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  CUDA_OK(cuTexObjectDestroy(object));
  CUtexObject other = 0;
  CUDA_OK(create(of, &other));
  EXPECT_NE(other, object);
  go.set_value();
  CUDA_OK(cuStreamSynchronize(stream));
  float value = 0;
  std::memcpy(&value, read(out_, 4).data(), 4);
  EXPECT_EQ(value, 12);
  CUDA_OK(cuTexObjectDestroy(other));
  CUDA_OK(cuStreamDestroy_v2(stream));
  CUDA_OK(cuArrayDestroy(of.res.array.hArray));
}

TEST_F(TextureTest, ReferencesAreBoundToArrays) {
  const CUarray from = array(8, 4), to = array(8, 4, CUDA_ARRAY3D_SURFACE_LDST);
  CUtexref picture = nullptr, again = nullptr;
  CUsurfref canvas = nullptr;
  CUDA_OK(cuModuleGetTexRef(&picture, module_, "picture"));
  CUDA_OK(cuModuleGetTexRef(&again, module_, "picture"));
  EXPECT_EQ(picture, again);
  EXPECT_EQ(cuModuleGetTexRef(&again, module_, "nothing"), CUDA_ERROR_NOT_FOUND);
  CUDA_OK(cuModuleGetSurfRef(&canvas, module_, "canvas"));
  CUarray bound = nullptr;
  EXPECT_EQ(cuTexRefGetArray(&bound, picture), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuTexRefSetAddressMode(picture, 0, CU_TR_ADDRESS_MODE_CLAMP));
  CUDA_OK(cuTexRefSetArray(picture, from, CU_TRSA_OVERRIDE_FORMAT));
  CUDA_OK(cuSurfRefSetArray(canvas, to, 0));
  CUDA_OK(cuTexRefGetArray(&bound, picture));
  EXPECT_EQ(bound, from);
  CUtexObject written = 0;
  CUDA_OK(create(resource(to), &written));
  CUDA_OK(run("copy", 5u, 3u));
  EXPECT_EQ(texel(written, 5.5f, 3.5f), 35);  // texel (5, 3)
  CUDA_OK(cuTexRefSetFilterMode(picture, CU_TR_FILTER_MODE_LINEAR));
  CUDA_OK(run("copy", 5u, 3u));
  EXPECT_EQ(texel(written, 5.5f, 3.5f), 29.5f);  // between four texels
  CUDA_OK(cuTexObjectDestroy(written));
}

TEST_F(TextureTest, ReferencesEndWithTheirContext) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2(&other, 0, 0));
  CUmodule module = nullptr;
  CUDA_OK(cuModuleLoadData(&module, kPtx));
  CUtexref named = nullptr, made = nullptr;
  CUDA_OK(cuModuleGetTexRef(&named, module, "picture"));
  CUDA_OK(cuTexRefCreate(&made));
  const CUarray bound = array(8, 4);
  for (const CUtexref reference : {named, made}) {
    CUDA_OK(cuTexRefSetArray(reference, bound, CU_TRSA_OVERRIDE_FORMAT));
  }
  CUDA_OK(cuCtxDestroy_v2(other));
  for (const CUtexref reference : {named, made}) {
    EXPECT_EQ(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR),
              CUDA_ERROR_INVALID_HANDLE);
  }
}

TEST_F(TextureTest, AFailedChangeOfAReferenceChangesNothing) {
  CUtexref reference = nullptr;
  CUDA_OK(cuTexRefCreate(&reference));
  CUDA_OK(cuTexRefSetFormat(reference, CU_AD_FORMAT_UNSIGNED_INT8, 4));
  CUDA_OK(cuTexRefSetFlags(reference, CU_TRSF_SEAMLESS_CUBEMAP));
  const CUarray flat = array(8, 4);
  EXPECT_EQ(cuTexRefSetArray(reference, flat, CU_TRSA_OVERRIDE_FORMAT), CUDA_ERROR_INVALID_VALUE);
  CUarray_format format{};
  int channels = 0;
  CUDA_OK(cuTexRefGetFormat(&format, &channels, reference));
  EXPECT_EQ(format, CU_AD_FORMAT_UNSIGNED_INT8);
  EXPECT_EQ(channels, 4);
  CUDA_OK(cuTexRefDestroy(reference));
  CUDA_OK(cuArrayDestroy(flat));
}

TEST_F(TextureTest, UnknownHandlesFault) {
  EXPECT_EQ(run("read", out_, CUtexObject{1} << 40, 0.5f, 0.5f), CUDA_ERROR_ILLEGAL_ADDRESS);
  module_ = nullptr;
}

TEST_F(TextureTest, AccessesOutsideASurfaceFault) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4, CUDA_ARRAY3D_SURFACE_LDST));
  CUsurfObject surface = 0;
  CUDA_OK(cuSurfObjectCreate(&surface, &of));
  EXPECT_EQ(run("increment", surface, 32u, 2u), CUDA_ERROR_ILLEGAL_ADDRESS);
  module_ = nullptr;
}

TEST_F(TextureTest, MisalignedPlacesOnASurfaceFault) {
  const CUDA_RESOURCE_DESC of = resource(array(8, 4, CUDA_ARRAY3D_SURFACE_LDST));
  CUsurfObject surface = 0;
  CUDA_OK(cuSurfObjectCreate(&surface, &of));
  EXPECT_EQ(run("increment", surface, 2u, 2u), CUDA_ERROR_MISALIGNED_ADDRESS);
  module_ = nullptr;
}

}  // namespace
}  // namespace softgpu::driver
