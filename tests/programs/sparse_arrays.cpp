// Sparse arrays, if the device has them: memory is mapped tile by tile.
#include <cstdio>
#include <vector>

#include <cuda.h>

#include "driver_checks.h"

namespace {

constexpr size_t kTileBytes = 64 << 10, kPoolBytes = 4 << 20;

int attribute(CUdevice_attribute which) {
  int value = -1;
  CU(cuDeviceGetAttribute(&value, which, 0));
  return value;
}

CUarray make_array(unsigned flags, CUresult expected = CUDA_SUCCESS) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = descriptor.Height = 1024;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 1;
  descriptor.Flags = flags;
  CUarray array = nullptr;
  EXPECT(expected, cuArray3DCreate(&array, &descriptor));
  return array;
}

CUmemGenericAllocationHandle tile_pool() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  CUmemGenericAllocationHandle pool;
  CU(cuMemCreate(&pool, kPoolBytes, &properties, 0));
  return pool;
}

void copy_tile(CUarray array, const CUDA_ARRAY_SPARSE_PROPERTIES& sparse, float* data,
               bool to_array, size_t row) {
  CUDA_MEMCPY2D copy{};
  const size_t pitch = sparse.tileExtent.width * sizeof(float);
  copy.srcMemoryType = to_array ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
  copy.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
  copy.srcHost = copy.dstHost = data;
  copy.srcPitch = copy.dstPitch = pitch;
  copy.srcArray = copy.dstArray = array;
  (to_array ? copy.dstY : copy.srcY) = row;
  copy.WidthInBytes = pitch;
  copy.Height = sparse.tileExtent.height;
  CU(cuMemcpy2D(&copy));
}

void unmap(CUarrayMapInfo info) {
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  info.memHandle.memHandle = 0;
  CU(cuMemMapArrayAsync(&info, 1, nullptr));
  CU(cuCtxSynchronize());
}

// Two tiles, one below the other, whose memory is exchanged: each then has the other's content.
void swapped_tiles(CUarray array, const CUarrayMapInfo& first,
                   const CUDA_ARRAY_SPARSE_PROPERTIES& sparse) {
  const unsigned rows = sparse.tileExtent.height;
  CUarrayMapInfo tiles[] = {first, first};
  tiles[1].subresource.sparseLevel.offsetY = rows;
  tiles[1].offset = kTileBytes;
  CU(cuMemMapArrayAsync(tiles, 2, nullptr));
  CU(cuCtxSynchronize());
  const size_t floats = size_t{sparse.tileExtent.width} * rows;
  std::vector<float> data[] = {std::vector<float>(floats, 1), std::vector<float>(floats, 2)};
  std::vector<float> back(floats);
  for (unsigned i = 0; i < 2; ++i) copy_tile(array, sparse, data[i].data(), true, i * rows);
  for (const CUarrayMapInfo& tile : tiles) unmap(tile);
  tiles[0].offset = kTileBytes;
  tiles[1].offset = 0;
  CU(cuMemMapArrayAsync(tiles, 2, nullptr));
  CU(cuCtxSynchronize());
  for (unsigned i = 0; i < 2; ++i) {
    copy_tile(array, sparse, back.data(), false, i * rows);
    CHECK(back == data[1 - i]);
  }
  unmap(tiles[1]);
}

// The tail of a mipmapped array: its last level is one texel.
void mipmapped_arrays() {
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  descriptor.Width = descriptor.Height = 1024;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 1;
  descriptor.Flags = CUDA_ARRAY3D_SPARSE;
  CUmipmappedArray mipmap;
  CU(cuMipmappedArrayCreate(&mipmap, &descriptor, 11));
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  CU(cuMipmappedArrayGetSparseProperties(&sparse, mipmap));
  CHECK(sparse.miptailFirstLevel > 0 && sparse.miptailFirstLevel < 11);
  CHECK(sparse.miptailSize > 0 && sparse.miptailSize % kTileBytes == 0);
  CHECK(sparse.miptailSize <= kPoolBytes);
  const CUmemGenericAllocationHandle pool = tile_pool();
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
  info.resource.mipmap = mipmap;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
  info.subresource.miptail.size = sparse.miptailSize;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = pool;
  info.deviceBitMask = 1;
  CU(cuMemMapArrayAsync(&info, 1, nullptr));
  CU(cuCtxSynchronize());
  CUarray last;
  CU(cuMipmappedArrayGetLevel(&last, mipmap, 10));
  float value = 42, back = 0;
  CU(cuMemcpyHtoA(last, 0, &value, sizeof value));
  CU(cuMemcpyAtoH(&back, last, 0, sizeof back));
  CHECK(back == value);
  unmap(info);
  CU(cuMipmappedArrayDestroy(mipmap));
  CU(cuMemRelease(pool));
}

void sparse_arrays() {
  const CUarray plain = make_array(0), array = make_array(CUDA_ARRAY3D_SPARSE);
  CUDA_ARRAY_SPARSE_PROPERTIES sparse{};
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(&sparse, plain));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuArrayGetSparseProperties(nullptr, array));
  CU(cuArrayGetSparseProperties(&sparse, array));
  CHECK(sparse.tileExtent.width > 0 && sparse.tileExtent.height > 0);
  const CUmemGenericAllocationHandle pool = tile_pool();
  CUarrayMapInfo info{};
  info.resourceType = CU_RESOURCE_TYPE_ARRAY;
  info.resource.array = array;
  info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
  info.subresource.sparseLevel.extentWidth = sparse.tileExtent.width;
  info.subresource.sparseLevel.extentHeight = sparse.tileExtent.height;
  info.subresource.sparseLevel.extentDepth = 1;
  info.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
  info.memHandle.memHandle = pool;
  info.deviceBitMask = 1;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(nullptr, 1, nullptr));
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&info, 0, nullptr));
  CU(cuMemMapArrayAsync(&info, 1, nullptr));
  CU(cuCtxSynchronize());
  const size_t floats = size_t{sparse.tileExtent.width} * sparse.tileExtent.height;
  std::vector<float> data(floats), back(floats);
  for (size_t i = 0; i < floats; ++i) data[i] = static_cast<float>(i);
  copy_tile(array, sparse, data.data(), true, 0);
  copy_tile(array, sparse, back.data(), false, 0);
  CHECK(back == data);
  CUarrayMapInfo wrong = info;
  wrong.deviceBitMask = 0;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, nullptr));
  wrong = info;
  wrong.flags = 1;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, nullptr));
  wrong = info;
  wrong.resource.array = plain;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, nullptr));
  wrong = info;
  wrong.subresource.sparseLevel.offsetX = 1;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, nullptr));
  wrong = info;
  wrong.offset = 1;
  EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMapArrayAsync(&wrong, 1, nullptr));
  swapped_tiles(array, info, sparse);
  unmap(info);
  CU(cuMemRelease(pool));
  CU(cuArrayDestroy(array));
  CU(cuArrayDestroy(plain));
}

}  // namespace

int main() {
  CUcontext context;
  CU(cuInit(0));
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  if (attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED)) {
    sparse_arrays();
    mipmapped_arrays();
  }
  std::printf("sparse arrays: as the attribute says\n");
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}
