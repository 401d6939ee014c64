// Arrays of every shape and format: which ones the driver accepts, and that copies to and from an
// array keep the contents.
#include <cstring>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

class ArrayTest : public CoreTest {
 protected:
  static CUDA_ARRAY3D_DESCRIPTOR shape(size_t width, size_t height, size_t depth,
                                       CUarray_format format = CU_AD_FORMAT_FLOAT,
                                       unsigned channels = 1, unsigned flags = 0) {
    return {width, height, depth, format, channels, flags};
  }

  // Creates and destroys an array.
  static CUresult accept(const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
    CUarray array = nullptr;
    const CUresult result = cuArray3DCreate_v2(&array, &descriptor);
    if (result == CUDA_SUCCESS) {
      EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
    }
    return result;
  }

  // A copy of a whole array between it and host memory without gaps.
  static CUDA_MEMCPY3D whole(size_t row_bytes, size_t rows, size_t slices) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = copy.srcPitch = copy.dstPitch = row_bytes;
    copy.Height = copy.srcHeight = copy.dstHeight = rows;
    copy.Depth = slices;
    return copy;
  }
  static void put(CUarray array, const std::vector<uint8_t>& data, CUDA_MEMCPY3D copy) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = data.data();
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    EXPECT_EQ(cuMemcpy3D_v2(&copy), CUDA_SUCCESS);
  }
  static std::vector<uint8_t> get(CUarray array, CUDA_MEMCPY3D copy) {
    std::vector<uint8_t> data(copy.WidthInBytes * copy.Height * copy.Depth);
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = data.data();
    EXPECT_EQ(cuMemcpy3D_v2(&copy), CUDA_SUCCESS);
    return data;
  }
};

TEST_F(ArrayTest, EveryFormatKeepsItsContents) {
  struct Case {
    CUarray_format format;
    size_t channel_bytes;
  };
  constexpr Case kCases[] = {
      {CU_AD_FORMAT_UNSIGNED_INT8, 1},  {CU_AD_FORMAT_SIGNED_INT8, 1},
      {CU_AD_FORMAT_UNSIGNED_INT16, 2}, {CU_AD_FORMAT_SIGNED_INT16, 2},
      {CU_AD_FORMAT_UNSIGNED_INT32, 4}, {CU_AD_FORMAT_SIGNED_INT32, 4},
      {CU_AD_FORMAT_HALF, 2},           {CU_AD_FORMAT_FLOAT, 4},
  };
  for (const Case& c : kCases) {
    for (const unsigned channels : {1u, 2u, 4u}) {
      const auto descriptor = shape(7, 5, 0, c.format, channels);
      CUarray array = nullptr;
      CUDA_OK(cuArray3DCreate_v2(&array, &descriptor));
      const size_t row = 7 * channels * c.channel_bytes;
      const std::vector<uint8_t> data = noise(row * 5);
      put(array, data, whole(row, 5, 1));
      EXPECT_EQ(get(array, whole(row, 5, 1)), data) << c.format << " x " << channels;
      CUDA_OK(cuArrayDestroy(array));
    }
  }
  for (const unsigned channels : {0u, 3u, 5u}) {
    EXPECT_EQ(accept(shape(7, 5, 0, CU_AD_FORMAT_FLOAT, channels)), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(accept(shape(7, 5, 0, static_cast<CUarray_format>(5))), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

TEST_F(ArrayTest, ShapesFollowTheirFlags) {
  const auto flat = CU_AD_FORMAT_UNSIGNED_INT8;
  EXPECT_EQ(accept(shape(0, 4, 0)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(8, 0, 2)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(8, 4, 2)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(8, 0, 3, flat, 1, CUDA_ARRAY3D_LAYERED)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(8, 4, 3, flat, 1, CUDA_ARRAY3D_LAYERED)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(8, 4, 0, flat, 1, CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 4, 6, flat, 1, CUDA_ARRAY3D_CUBEMAP)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(4, 4, 5, flat, 1, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 8, 6, flat, 1, CUDA_ARRAY3D_CUBEMAP)), CUDA_ERROR_INVALID_VALUE);
  const unsigned cubes = CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED;
  EXPECT_EQ(accept(shape(4, 4, 12, flat, 1, cubes)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(4, 4, 7, flat, 1, cubes)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ArrayTest, ExtentsHaveLimits) {
  const auto flat = CU_AD_FORMAT_UNSIGNED_INT8;
  EXPECT_EQ(accept(shape(131072, 0, 0, flat)), CUDA_SUCCESS);
  EXPECT_EQ(accept(shape(131073, 0, 0, flat)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 65537, 0, flat)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 16385, 2, flat)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 4, 20000, flat)),
            CUDA_SUCCESS);  // the other limits of three dimensions
  EXPECT_EQ(accept(shape(4, 4, 2049, flat, 1, CUDA_ARRAY3D_LAYERED)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(32769, 0, 0, flat, 1, CUDA_ARRAY3D_SURFACE_LDST)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(accept(shape(4, 4, 4, flat, 1, CUDA_ARRAY3D_TEXTURE_GATHER)), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ArrayTest, LevelsHalveAndKeepTheirContents) {
  const auto descriptor = shape(13, 6, 0, CU_AD_FORMAT_UNSIGNED_INT16, 2);
  CUmipmappedArray array = nullptr;
  CUDA_OK(cuMipmappedArrayCreate(&array, &descriptor, 99));  // as many as there can be
  constexpr size_t kWidths[] = {13, 6, 3, 1}, kHeights[] = {6, 3, 1, 1};
  CUarray levels[4] = {};
  for (unsigned l = 0; l < 4; ++l) {
    CUDA_OK(cuMipmappedArrayGetLevel(&levels[l], array, l));
    CUDA_ARRAY3D_DESCRIPTOR found{};
    CUDA_OK(cuArray3DGetDescriptor_v2(&found, levels[l]));
    EXPECT_EQ(found.Width, kWidths[l]);
    EXPECT_EQ(found.Height, kHeights[l]);
    EXPECT_EQ(found.Format, CU_AD_FORMAT_UNSIGNED_INT16);
    put(levels[l], noise(kWidths[l] * 4 * kHeights[l], l), whole(kWidths[l] * 4, kHeights[l], 1));
  }
  for (unsigned l = 0; l < 4; ++l) {
    EXPECT_EQ(get(levels[l], whole(kWidths[l] * 4, kHeights[l], 1)),
              noise(kWidths[l] * 4 * kHeights[l], l));
  }
  CUarray none = nullptr;
  EXPECT_EQ(cuMipmappedArrayGetLevel(&none, array, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayDestroy(levels[0]), CUDA_SUCCESS);  // has no effect
  CUDA_OK(cuMipmappedArrayDestroy(array));
  CUDA_ARRAY3D_DESCRIPTOR found{};
  EXPECT_EQ(cuArray3DGetDescriptor_v2(&found, levels[1]), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuMipmappedArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
}

TEST_F(ArrayTest, LayersDoNotHalve) {
  CUmipmappedArray array = nullptr;
  const auto layers = shape(8, 8, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED);
  CUDA_OK(cuMipmappedArrayCreate(&array, &layers, 4));
  CUarray level = nullptr;
  CUDA_OK(cuMipmappedArrayGetLevel(&level, array, 3));
  CUDA_ARRAY3D_DESCRIPTOR found{};
  CUDA_OK(cuArray3DGetDescriptor_v2(&found, level));
  EXPECT_EQ(found.Width, 1u);
  EXPECT_EQ(found.Depth, 3u);
  EXPECT_EQ(found.Flags, unsigned{CUDA_ARRAY3D_LAYERED});
  CUDA_OK(cuMipmappedArrayDestroy(array));

  const auto volume = shape(8, 4, 16);
  CUDA_OK(cuMipmappedArrayCreate(&array, &volume, 5));
  CUDA_OK(cuMipmappedArrayGetLevel(&level, array, 2));
  CUDA_OK(cuArray3DGetDescriptor_v2(&found, level));
  EXPECT_EQ(found.Depth, 4u);
  CUDA_OK(cuMipmappedArrayDestroy(array));
}

TEST_F(ArrayTest, CopiesGoBetweenArrays) {
  const auto wide = shape(8, 4, 2), narrow = shape(4, 4, 0);
  CUarray from = nullptr, to = nullptr;
  CUDA_OK(cuArray3DCreate_v2(&from, &wide));
  CUDA_OK(cuArray3DCreate_v2(&to, &narrow));
  const std::vector<uint8_t> data = noise(8 * 4 * 4 * 2);
  put(from, data, whole(32, 4, 2));
  put(to, std::vector<uint8_t>(64), whole(16, 4, 1));
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = from;
  copy.dstArray = to;
  copy.srcXInBytes = 12;
  copy.srcY = 1;
  copy.srcZ = 1;
  copy.dstY = 2;
  copy.WidthInBytes = 16;
  copy.Height = 2;
  copy.Depth = 1;
  CUDA_OK(cuMemcpy3D_v2(&copy));
  const std::vector<uint8_t> got = get(to, whole(16, 4, 1));
  for (size_t y = 0; y < 2; ++y) {
    EXPECT_EQ(std::memcmp(&got[(2 + y) * 16], &data[((4 + 1 + y) * 8 + 3) * 4], 16), 0);
  }
  CUDA_OK(cuArrayDestroy(from));
  CUDA_OK(cuArrayDestroy(to));
}

}  // namespace
}  // namespace softgpu::driver
