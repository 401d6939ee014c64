// Sparse arrays, if the device has them: memory is mapped tile by tile.
#include <cstdio>
#include <vector>

#include <cuda.h>

#include "driver_checks.h"

namespace {

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
  CU(cuMemCreate(&pool, 4 << 20, &properties, 0));
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
  info.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
  info.memHandle.memHandle = 0;
  CU(cuMemMapArrayAsync(&info, 1, nullptr));
  CU(cuCtxSynchronize());
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
  if (attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED)) sparse_arrays();
  std::printf("sparse arrays: as the attribute says\n");
  CU(cuDevicePrimaryCtxRelease(0));
  return 0;
}
