#include <unistd.h>

#include "tests/unit/softgpu/driver/core_fixture.h"

namespace softgpu::driver {
namespace {

constexpr size_t kPage = size_t{2} << 20;

class VmmTest : public CoreTest {
 protected:
  static CUmemAllocationProp properties(int device = 0, bool exportable = false) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
  }
  static CUmemAccessDesc access(int device, CUmemAccess_flags flags) {
    CUmemAccessDesc desc{};
    desc.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    desc.flags = flags;
    return desc;
  }
  static CUmemGenericAllocationHandle create(size_t bytes, bool exportable = false) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = properties(0, exportable);
    EXPECT_EQ(cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
    return handle;
  }
};

TEST_F(VmmTest, GrantsFreeHintsExactly) {
  CUdeviceptr first = 0, second = 0;
  CUdeviceptr hole = 0;
  CUDA_OK(cuMemAddressReserve(&hole, 64 * kPage, 0, 0, 0));
  CUDA_OK(cuMemAddressFree(hole, 64 * kPage));
  const CUdeviceptr hint = hole + 8 * kPage;
  CUDA_OK(cuMemAddressReserve(&first, 16 * kPage, 0, hint, 0));
  EXPECT_EQ(first, hint);
  CUDA_OK(cuMemAddressReserve(&second, kPage, 0, hint, 0));
  EXPECT_NE(second, hint);
  EXPECT_EQ(second % kPage, 0u);
  CUDA_OK(cuMemAddressFree(first, 16 * kPage));
  CUDA_OK(cuMemAddressFree(second, kPage));
  CUDA_OK(cuMemAddressReserve(&first, kPage, size_t{1} << 30, 0, 0));
  EXPECT_EQ(first % (size_t{1} << 30), 0u);
  EXPECT_EQ(cuMemAddressFree(first, 2 * kPage), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemAddressFree(first, kPage));
  EXPECT_EQ(cuMemAddressReserve(&first, 1000, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&first, kPage, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&first, size_t{1} << 62, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(VmmTest, MapsAndUnmapsPhysicalMemory) {
  size_t granularity = 0;
  const CUmemAllocationProp prop = properties();
  CUDA_OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, kPage);
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, 4 * kPage, 0, 0, 0));
  const CUmemGenericAllocationHandle first = create(kPage), second = create(kPage);
  EXPECT_EQ(free_bytes(), kDeviceBytes - 2 * kPage);
  CUDA_OK(cuMemMap(base, kPage, 0, first, 0));
  CUDA_OK(cuMemMap(base + kPage, kPage, 0, second, 0));
  EXPECT_EQ(cuMemMap(base + kPage, kPage, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + 4 * kPage, kPage, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(base, 1, kPage), CUDA_ERROR_INVALID_VALUE);  // no access yet
  const CUmemAccessDesc both = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUDA_OK(cuMemSetAccess(base, 2 * kPage, &both, 1));
  EXPECT_EQ(cuMemSetAccess(base, 3 * kPage, &both, 1), CUDA_ERROR_INVALID_VALUE);
  // A copy may cross from one mapping into the next.
  const std::vector<uint8_t> data = noise(kPage);
  write(base + kPage / 2, data);
  EXPECT_EQ(read(base + kPage / 2, kPage), data);
  // The same physical memory at a second address.
  CUDA_OK(cuMemMap(base + 2 * kPage, kPage, 0, second, 0));
  CUDA_OK(cuMemSetAccess(base + 2 * kPage, kPage, &both, 1));
  EXPECT_EQ(read(base + 2 * kPage, 1000), read(base + kPage, 1000));
  unsigned long long flags = 9;
  EXPECT_EQ(cuMemGetAccess(&flags, &both.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  const CUmemLocation other{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  EXPECT_EQ(cuMemGetAccess(&flags, &other, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, 0u);
  EXPECT_EQ(cuMemAddressFree(base, 4 * kPage), CUDA_ERROR_INVALID_VALUE);  // still mapped
  EXPECT_EQ(cuMemUnmap(base, kPage / 2), CUDA_ERROR_INVALID_VALUE);
  const size_t beyond_all = ~base + 1 + base % kPage;  // the end of the range wraps around
  EXPECT_EQ(cuMemUnmap(base, beyond_all), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemUnmap(base, 3 * kPage));
  EXPECT_EQ(cuMemUnmap(base, kPage), CUDA_SUCCESS);  // nothing is mapped there
  EXPECT_EQ(cuMemUnmap(base + 8 * kPage, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD8_v2(base, 1, kPage), CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemRelease(first));
  EXPECT_EQ(free_bytes(), kDeviceBytes - kPage);
  CUDA_OK(cuMemRelease(second));
  EXPECT_EQ(cuMemRelease(second), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  CUDA_OK(cuMemAddressFree(base, 4 * kPage));
}

TEST_F(VmmTest, PhysicalMemoryOutlivesItsHandleWhileMapped) {
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, kPage, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create(kPage);
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  CUDA_OK(cuMemRelease(handle));
  EXPECT_EQ(free_bytes(), kDeviceBytes - kPage);
  CUmemGenericAllocationHandle again = 0;
  CUDA_OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base + 100)));
  CUmemAllocationProp found{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, again), CUDA_SUCCESS);
  EXPECT_EQ(found.location.id, 0);
  CUDA_OK(cuMemUnmap(base, kPage));
  EXPECT_EQ(free_bytes(), kDeviceBytes - kPage);
  CUDA_OK(cuMemRelease(again));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  CUDA_OK(cuMemAddressFree(base, kPage));
}

TEST_F(VmmTest, ValidatesRequests) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = properties();
  EXPECT_EQ(cuMemCreate(&handle, kPage + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kDeviceBytes + kPage, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  prop.location.id = 9;
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
  prop = properties();
  prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(cuMemCreate(&handle, kPage, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
  const CUmemGenericAllocationHandle plain = create(kPage);
  int file = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&file, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_OK(cuMemRelease(plain));
}

TEST_F(VmmTest, ExportedDescriptorsNameTheSameMemory) {
  const CUmemGenericAllocationHandle handle = create(kPage, /*exportable=*/true);
  int file = -1;
  CUDA_OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  CUDA_OK(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{file}),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(file);
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, 2 * kPage, 0, 0, 0));
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  CUDA_OK(cuMemMap(base + kPage, kPage, 0, imported, 0));
  const CUmemAccessDesc both = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUDA_OK(cuMemSetAccess(base, 2 * kPage, &both, 1));
  const std::vector<uint8_t> data = noise(5000);
  write(base + 10, data);
  EXPECT_EQ(read(base + kPage + 10, data.size()), data);
  CUDA_OK(cuMemUnmap(base, 2 * kPage));
  CUDA_OK(cuMemAddressFree(base, 2 * kPage));
  CUDA_OK(cuMemRelease(handle));
  CUDA_OK(cuMemRelease(imported));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_EQ(
      cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{pipe_ends[0]}),
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_ERROR_UNKNOWN);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST_F(VmmTest, AttributesTellReservedFromMapped) {
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, 2 * kPage, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create(kPage);
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  unsigned mapped = 9;
  EXPECT_EQ(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, base + 1), CUDA_SUCCESS);
  EXPECT_EQ(mapped, 1u);
  EXPECT_EQ(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, base + kPage),
            CUDA_ERROR_INVALID_VALUE);
  size_t bytes = 0;
  EXPECT_EQ(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, base + 1), CUDA_SUCCESS);
  EXPECT_EQ(bytes, 2 * kPage);
  EXPECT_EQ(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, base + 1),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, kPage);
  CUDA_OK(cuMemUnmap(base, kPage));
  CUDA_OK(cuMemRelease(handle));
  CUDA_OK(cuMemAddressFree(base, 2 * kPage));
}

TEST_F(VmmTest, HostMemoryCanBeMapped) {
  CUmemAllocationProp prop = properties();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemGenericAllocationHandle handle = 0;
  CUDA_OK(cuMemCreate(&handle, kPage, &prop, 0));
  EXPECT_EQ(free_bytes(), kDeviceBytes);
  CUdeviceptr base = 0;
  CUDA_OK(cuMemAddressReserve(&base, kPage, 0, 0, 0));
  CUDA_OK(cuMemMap(base, kPage, 0, handle, 0));
  CUmemAccessDesc both[2] = {access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), {}};
  both[1].location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUDA_OK(cuMemSetAccess(base, kPage, both, 2));
  CUDA_OK(cuMemsetD8_v2(base, 0x5a, 100));
  CUDA_OK(cuCtxSynchronize());
  EXPECT_EQ(*reinterpret_cast<uint8_t*>(base + 99), 0x5a);
  CUDA_OK(cuMemUnmap(base, kPage));
  CUDA_OK(cuMemRelease(handle));
  CUDA_OK(cuMemAddressFree(base, kPage));
}

}  // namespace
}  // namespace softgpu::driver
