// Uses every device of a wide pool: memory, a stream-ordered pool, reservations of twice the
// device's memory, copies from each device to the next, and pointer attributes among all of them.
//
//   wide_pool            prints what it has checked
//   wide_pool greedy     reserves the memory's size on the first device until that is refused
//
// Every address must belong to one device only. Exit status: 0, or 1 with the first difference.
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kBytes = 64u << 10;

void check(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "line %d: %s: error %d\n", line, what, result);
  std::exit(1);
}
#define CHECK(call) check(call, #call, __LINE__)

struct Range {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  int device = 0;
};

struct Device {
  CUcontext context = nullptr;
  size_t memory = 0;
  CUdeviceptr plain = 0;
  CUdeviceptr pooled = 0;
  CUdeviceptr reserved = 0;  // twice the memory
  CUdeviceptr mapped = 0;    // the last page of it
};

std::vector<Device> devices;
std::vector<Range> ranges;

void own(CUdeviceptr begin, size_t bytes, int device) { ranges.push_back({begin, bytes, device}); }

CUmemAllocationProp memory_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return properties;
}

void open_devices() {
  int count = 0;
  CHECK(cuInit(0));
  CHECK(cuDeviceGetCount(&count));
  devices.resize(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    Device& device = devices[static_cast<size_t>(i)];
    CHECK(cuDeviceTotalMem(&device.memory, i));
    CHECK(cuDevicePrimaryCtxRetain(&device.context, i));
  }
}

void use(Device& device, int ordinal) {
  CHECK(cuCtxSetCurrent(device.context));
  CHECK(cuMemAlloc(&device.plain, kBytes));
  own(device.plain, kBytes, ordinal);
  CHECK(cuMemAllocAsync(&device.pooled, kBytes, nullptr));
  own(device.pooled, kBytes, ordinal);
  const size_t twice = (2 * device.memory + kPage - 1) / kPage * kPage;
  CHECK(cuMemAddressReserve(&device.reserved, twice, 0, 0, 0));
  own(device.reserved, twice, ordinal);
  device.mapped = device.reserved + twice - kPage;
  const CUmemAllocationProp properties = memory_of(ordinal);
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, kPage, &properties, 0));
  CHECK(cuMemMap(device.mapped, kPage, 0, handle, 0));
  CHECK(cuMemRelease(handle));
  CHECK(cuMemSetAccess(device.mapped, kPage, &access, 1));
  const auto value = static_cast<unsigned>(ordinal);
  CHECK(cuMemsetD32(device.plain, 1000 + value, kBytes / 4));
  CHECK(cuMemsetD32(device.pooled, 2000 + value, kBytes / 4));
  CHECK(cuMemsetD32(device.mapped, 3000 + value, kBytes / 4));
}

void expect_word(CUdeviceptr at, unsigned wanted) {
  unsigned word = 0;
  CHECK(cuMemcpyDtoH(&word, at, sizeof word));
  if (word == wanted) return;
  std::fprintf(stderr, "%#llx: %u, not %u\n", at, word, wanted);
  std::exit(1);
}

void expect_device(CUdeviceptr at, int wanted) {
  int device = -1;
  CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
  if (device == wanted) return;
  std::fprintf(stderr, "%#llx belongs to device %d, not %d\n", at, device, wanted);
  std::exit(1);
}

void expect_disjoint() {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].begin + ranges[i - 1].bytes <= ranges[i].begin) continue;
    std::fprintf(stderr, "%#llx of device %d and %#llx of device %d overlap\n", ranges[i - 1].begin,
                 ranges[i - 1].device, ranges[i].begin, ranges[i].device);
    std::exit(1);
  }
}

int count() { return static_cast<int>(devices.size()); }

void everything() {
  open_devices();
  for (int i = 0; i < count(); ++i) use(devices[static_cast<size_t>(i)], i);
  expect_disjoint();
  for (int i = 0; i < count(); ++i) {
    const Device& device = devices[static_cast<size_t>(i)];
    expect_device(device.plain, i);
    expect_device(device.pooled, i);
    expect_device(device.mapped, i);
    expect_word(device.plain + kBytes - 4, 1000 + static_cast<unsigned>(i));
    expect_word(device.mapped + kBytes - 4, 3000 + static_cast<unsigned>(i));
  }
  // A ring. Addresses alone tell the devices of plain memory; a driver copies memory of pools
  // between devices only if the call names them.
  for (int i = 0; i < count(); ++i) {
    const Device& from = devices[static_cast<size_t>(i)];
    const Device& to = devices[static_cast<size_t>((i + 1) % count())];
    CHECK(cuMemcpyPeer(to.mapped, to.context, from.pooled, from.context, kBytes));
    CHECK(cuMemcpy(to.plain, from.plain + kBytes / 2, kBytes / 2));
  }
  for (int i = 0; i < count(); ++i) {
    const Device& to = devices[static_cast<size_t>((i + 1) % count())];
    expect_word(to.mapped + kBytes - 4, 2000 + static_cast<unsigned>(i));
    expect_word(to.plain + kBytes / 2 - 4, 1000 + static_cast<unsigned>(i));
  }
  for (const Device& device : devices) {
    CHECK(cuCtxSetCurrent(device.context));
    CHECK(cuMemUnmap(device.mapped, kPage));
    CHECK(cuMemAddressFree(device.reserved, (2 * device.memory + kPage - 1) / kPage * kPage));
    CHECK(cuMemFreeAsync(device.pooled, nullptr));
    CHECK(cuMemFree(device.plain));
  }
  std::printf("%d devices: memory, pools, reservations and copies are right\n", count());
}

void greedy() {
  open_devices();
  CHECK(cuCtxSetCurrent(devices[0].context));
  const size_t bytes = (devices[0].memory + kPage - 1) / kPage * kPage;
  int granted = 0;
  for (CUdeviceptr base = 0; granted < 100'000; ++granted) {
    const CUresult result = cuMemAddressReserve(&base, bytes, 0, 0, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) break;
    CHECK(result);
    own(base, bytes, 0);
  }
  expect_disjoint();
  // What needs little room still works.
  CUdeviceptr small = 0;
  CHECK(cuMemAlloc(&small, 512));
  expect_device(small, 0);
  std::printf("refused after more than two reservations: %s\n", granted > 2 ? "yes" : "no");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  what == "greedy" ? greedy() : everything();
  return 0;
}
