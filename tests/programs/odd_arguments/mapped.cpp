#include <initializer_list>

#include "show.h"

namespace {

CUmemAllocationProp pinned(const World& w) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = w.here;
  return prop;
}

constexpr size_t kPiece = 2 << 20;  // a multiple of every GPU's granularity

}  // namespace

void virtual_memory(const World& w) {
  CUdeviceptr reserved = 0, p = 5;
  CUmemGenericAllocationHandle handle = 0, made = 5;
  const CUmemAllocationProp good = pinned(w);
  CU(cuMemAddressReserve(&reserved, 2 * kPiece, 0, 0, 0));
  CU(cuMemCreate(&handle, kPiece, &good, 0));
  SHOW(cuMemAddressReserve(&p, 0, 0, 0, 0));
  SHOW(cuMemAddressReserve(&p, 1, 0, 0, 0));
  SHOW(cuMemAddressReserve(&p, kPiece, 3, 0, 0));
  SHOW(cuMemAddressReserve(&p, kPiece, 0, 0, 1));
  SHOW(cuMemAddressFree(reserved, 0));
  SHOW(cuMemAddressFree(reserved, kPiece));
  SHOW(cuMemAddressFree(0, 0));
  SHOW(cuMemCreate(&made, 0, &good, 0));
  SHOW(cuMemCreate(&made, 1, &good, 0));
  SHOW(cuMemCreate(&made, kPiece, &good, 1));
  CUmemAllocationProp prop = good;
  prop.type = odd<CUmemAllocationType>();
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  size_t granularity = 5;
  SHOW(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  prop = good;
  prop.location.type = odd<CUmemLocationType>();
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  SHOW(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  prop.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  prop = good;
  prop.location.id = 1000;
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  SHOW(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  prop = good;
  prop.requestedHandleTypes = odd<CUmemAllocationHandleType>(0x100);
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  prop = good;
  prop.allocFlags.compressionType = 99;
  SHOW(cuMemCreate(&made, kPiece, &prop, 0));
  SHOW(cuMemGetAllocationGranularity(&granularity, &good, odd<CUmemAllocationGranularity_flags>()));
  SHOW(cuMemRelease(0));
  SHOW(cuMemGetAllocationPropertiesFromHandle(&prop, 0));
  SHOW(cuMemRetainAllocationHandle(&made, nullptr));
  SHOW(cuMemRetainAllocationHandle(&made, &granularity));
  SHOW(cuMemMap(reserved, 0, 0, handle, 0));
  SHOW(cuMemMap(reserved, 1, 0, handle, 0));
  SHOW(cuMemMap(reserved, kPiece, 1, handle, 0));
  SHOW(cuMemMap(reserved, kPiece, 0, handle, 1));
  SHOW(cuMemMap(reserved, 2 * kPiece, 0, handle, 0));
  SHOW(cuMemMap(reserved + 1, kPiece, 0, handle, 0));
  SHOW(cuMemMap(0, kPiece, 0, handle, 0));
  SHOW(cuMemMap(reserved, kPiece, 0, 0, 0));
  SHOW(cuMemUnmap(reserved, 0));
  SHOW(cuMemUnmap(reserved, kPiece));
  SHOW(cuMemUnmap(0, 0));
  CUmemAccessDesc access{w.here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  SHOW(cuMemSetAccess(reserved, kPiece, &access, 1));
  CU(cuMemMap(reserved, kPiece, 0, handle, 0));
  SHOW(cuMemSetAccess(reserved, 0, &access, 1));
  SHOW(cuMemSetAccess(reserved, kPiece, &access, 0));
  SHOW(cuMemSetAccess(reserved, 2 * kPiece, &access, 1));
  access.flags = odd<CUmemAccess_flags>();
  SHOW(cuMemSetAccess(reserved, kPiece, &access, 1));
  access = {w.here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  access.location.type = odd<CUmemLocationType>();
  SHOW(cuMemSetAccess(reserved, kPiece, &access, 1));
  access.location = w.here;
  access.location.id = 1000;
  SHOW(cuMemSetAccess(reserved, kPiece, &access, 1));
  unsigned long long flags = 5;
  SHOW(cuMemGetAccess(&flags, &access.location, reserved));
  SHOW(cuMemGetAccess(&flags, &w.here, reserved));
  VALUE(flags);
  SHOW(cuMemGetAccess(&flags, &w.here, reserved + kPiece));
  SHOW(cuMemGetAccess(&flags, &w.here, 0));
  int descriptor = -1;
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  SHOW(cuMemExportToShareableHandle(&descriptor, handle, kFile, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, handle, kFile, 1));
  SHOW(cuMemExportToShareableHandle(&descriptor, handle, odd<CUmemAllocationHandleType>(), 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_NONE, 0));
  SHOW(cuMemExportToShareableHandle(&descriptor, 0, kFile, 0));
  void* none = reinterpret_cast<void*>(-1L);
  SHOW(cuMemImportFromShareableHandle(&made, none, odd<CUmemAllocationHandleType>()));
  SHOW(cuMemImportFromShareableHandle(&made, none, CU_MEM_HANDLE_TYPE_NONE));
  SHOW(cuMemImportFromShareableHandle(&made, none, kFile));
  CU(cuMemUnmap(reserved, kPiece));
  CU(cuMemRelease(handle));
  CU(cuMemAddressFree(reserved, 2 * kPiece));
}

// A reservation of four pieces: two with a mapping of their own, one with access, one empty.
void mapped_in_pieces(const World& w) {
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle handles[3] = {};
  const CUmemAllocationProp prop = pinned(w);
  const CUmemAccessDesc access{w.here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CU(cuMemAddressReserve(&base, 4 * kPiece, 0, 0, 0));
  for (size_t i = 0; i < 3; ++i) {
    CU(cuMemCreate(&handles[i], kPiece, &prop, 0));
    CU(cuMemMap(base + i * kPiece, kPiece, 0, handles[i], 0));
  }
  CU(cuMemSetAccess(base, 2 * kPiece, &access, 1));
  const CUdeviceptr in_first = base + 16, in_second = base + kPiece + 16;
  const CUdeviceptr no_access = base + 2 * kPiece + 16, empty = base + 3 * kPiece + 16;
  CUdeviceptr start = 0, found = 0;
  size_t size = 0, bytes = 0;
  for (const CUdeviceptr at : {in_first, in_second, no_access, empty}) {
    VALUE((at - base) / kPiece);
    start = size = found = bytes = 0;
    SHOW(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
    VALUE(start ? start - base : ~0ull);
    SHOW(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
    VALUE(size);
    SHOW(cuMemGetAddressRange(&found, &bytes, at));
    VALUE(found ? found - base : ~0ull);
    VALUE(bytes);
    int mapped = 5;
    SHOW(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, at));
    VALUE(mapped);
    unsigned type = 5;
    SHOW(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    VALUE(type);
    unsigned long long here = 0, of_first = 0;
    SHOW(cuPointerGetAttribute(&here, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    CU(cuPointerGetAttribute(&of_first, CU_POINTER_ATTRIBUTE_BUFFER_ID, in_first));
    VALUE(here == of_first);
  }
  unsigned sync = 1;
  SHOW(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base));
  // One allocation mapped twice, with a hole between.
  CU(cuMemUnmap(base + kPiece, 2 * kPiece));
  CU(cuMemMap(base + 2 * kPiece, kPiece, 0, handles[0], 0));
  CU(cuMemSetAccess(base + 2 * kPiece, kPiece, &access, 1));
  const CUdeviceptr again = base + 2 * kPiece + 16;
  SHOW(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, again));
  VALUE(start - base);
  SHOW(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, again));
  VALUE(size);
  CU(cuMemUnmap(base + 2 * kPiece, kPiece));
  CU(cuMemUnmap(base, kPiece));
  for (const auto handle : handles) CU(cuMemRelease(handle));
  CU(cuMemAddressFree(base, 4 * kPiece));
}

void pools(const World& w) {
  CUmemoryPool pool = nullptr, made = nullptr, standard = nullptr;
  CUmemPoolProps good{};
  good.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  good.location = w.here;
  CU(cuMemPoolCreate(&pool, &good));
  CU(cuDeviceGetDefaultMemPool(&standard, w.device));
  CUmemPoolProps props{};
  SHOW(cuMemPoolCreate(&made, &props));
  props = good;
  props.allocType = odd<CUmemAllocationType>();
  SHOW(cuMemPoolCreate(&made, &props));
  props = good;
  props.location.type = odd<CUmemLocationType>();
  SHOW(cuMemPoolCreate(&made, &props));
  props = good;
  props.location.id = 1000;
  SHOW(cuMemPoolCreate(&made, &props));
  props = good;
  props.handleTypes = odd<CUmemAllocationHandleType>(0x100);
  SHOW(cuMemPoolCreate(&made, &props));
  props = good;
  props.usage = 0x8000;
  SHOW(cuMemPoolCreate(&made, &props));
  SHOW(cuMemPoolDestroy(standard));
  SHOW(cuMemPoolTrimTo(pool, 0));
  cuuint64_t wide = 0;
  SHOW(cuMemPoolGetAttribute(pool, odd<CUmemPool_attribute>(), &wide));
  SHOW(cuMemPoolGetAttribute(pool, odd<CUmemPool_attribute>(0), &wide));
  SHOW(cuMemPoolSetAttribute(pool, odd<CUmemPool_attribute>(), &wide));
  SHOW(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &wide));
  SHOW(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &wide));
  wide = 1;
  SHOW(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &wide));
  CUmemAccessDesc access{w.here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  SHOW(cuMemPoolSetAccess(pool, &access, 0));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  SHOW(cuMemPoolSetAccess(pool, &access, 1));
  access.flags = odd<CUmemAccess_flags>();
  SHOW(cuMemPoolSetAccess(pool, &access, 1));
  access = {w.here, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  access.location.type = odd<CUmemLocationType>();
  SHOW(cuMemPoolSetAccess(pool, &access, 1));
  CUmemAccess_flags flags{};
  SHOW(cuMemPoolGetAccess(&flags, pool, &access.location));
  access.location = w.here;
  access.location.id = 1000;
  SHOW(cuMemPoolGetAccess(&flags, pool, &access.location));
  CUmemLocation here = w.here;
  SHOW(cuMemGetDefaultMemPool(&made, &here, odd<CUmemAllocationType>()));
  SHOW(cuMemGetMemPool(&made, &here, odd<CUmemAllocationType>()));
  SHOW(cuMemSetMemPool(&here, odd<CUmemAllocationType>(), pool));
  int descriptor = -1;
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  SHOW(cuMemPoolExportToShareableHandle(&descriptor, pool, kFile, 0));
  SHOW(cuMemPoolExportToShareableHandle(&descriptor, pool, odd<CUmemAllocationHandleType>(), 0));
  CUmemPoolPtrExportData data{};
  SHOW(cuMemPoolExportPointer(&data, 0));
  void* none = reinterpret_cast<void*>(-1L);
  SHOW(cuMemPoolImportFromShareableHandle(&made, none, kFile, 0));
  SHOW(cuMemPoolImportFromShareableHandle(&made, none, odd<CUmemAllocationHandleType>(), 0));
  CU(cuMemPoolDestroy(pool));
}
