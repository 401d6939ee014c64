// Memory of every kind on every device of the program, all at once. No address may belong to two
// devices, or to one of them and to the program, and each must be one that the client has reserved.
//
//   wide_pool use [PARTS]  plain memory (half of the device's), memory of a pool and of a graph,
//                          managed and page-locked memory, and a reservation of twice the device's
//                          memory, a part of which is mapped. Writes a number to each, and reads
//                          all of them when everything is allocated. PARTS: this many devices are
//                          in fact one device, and share its memory
//   wide_pool exhaust      reserves addresses on the first device until they are refused. Then it
//                          allocates, frees, and reserves again
#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda.h>

namespace {

constexpr size_t kGiB = size_t{1} << 30;
constexpr size_t kPage = size_t{2} << 20;
constexpr size_t kSmall = size_t{1} << 20;

void check(CUresult result, const char* what, int device = -1) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %d, device %d\n", what, result, device);
  std::exit(1);
}
#define CHECK(call) check(call, #call, current)

struct Range {
  uint64_t begin, end;
  int device;
  bool written;  // has a number at its begin
};

int current = 0;
std::vector<Range> ranges;

unsigned number_of(const Range& range) {
  return static_cast<unsigned>(range.begin >> 12) * 31 + static_cast<unsigned>(range.device);
}

void add(CUdeviceptr address, size_t bytes, bool write) {
  const Range range{address, address + bytes, current, write};
  if (write) CHECK(cuMemsetD32(address, number_of(range), 1024));
  ranges.push_back(range);
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

// Adds the memory that a graph allocates when it is launched once.
void use_graph() {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS memory{};
  memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.poolProps.location.id = current;
  memory.bytesize = kPage;
  CHECK(cuGraphCreate(&graph, 0));
  CHECK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &memory));
  CHECK(cuGraphInstantiate(&executable, graph, 0));
  CHECK(cuGraphLaunch(executable, nullptr));
  CHECK(cuCtxSynchronize());
  add(memory.dptr, kPage, true);
}

void use_reservation(size_t total) {
  const size_t bytes = (2 * total + kPage - 1) / kPage * kPage;
  CUdeviceptr reserved = 0;
  CHECK(cuMemAddressReserve(&reserved, bytes, 0, 0, 0));
  ranges.push_back({reserved, reserved + bytes, current, false});
  const CUmemAllocationProp properties = on_device(current);
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, kPage, &properties, 0));
  const CUdeviceptr mapped = reserved + bytes / 2 / kPage * kPage;
  CHECK(cuMemMap(mapped, kPage, 0, handle, 0));
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(mapped, kPage, &access, 1));
  unsigned value = 0;
  CHECK(cuMemsetD32(mapped, 7 + static_cast<unsigned>(current), 1024));
  CHECK(cuMemcpyDtoH(&value, mapped + 4092, sizeof value));
  if (value != 7 + static_cast<unsigned>(current)) check(CUDA_ERROR_UNKNOWN, "mapped memory");
}

// Checks that device memory is at addresses that the client has reserved, and not where the program
// has pages.
void expect_reserved() {
  std::vector<uint64_t> reserved(ranges.size(), 0);
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  char line[4352];
  while (file && std::fgets(line, sizeof line, file)) {
    uint64_t begin = 0, end = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, rights) != 3) continue;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Range& range = ranges[i];
      if (begin >= range.end || range.begin >= end) continue;
      if (rights[0] == 'r') {
        std::fprintf(stderr, "device %d has an address of the program: %s", range.device, line);
        std::exit(1);
      }
      reserved[i] += std::min(end, range.end) - std::max(begin, range.begin);
    }
  }
  if (file) std::fclose(file);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    if (reserved[i] == range.end - range.begin) continue;
    std::fprintf(stderr, "device %d: %#" PRIx64 "-%#" PRIx64 " is not reserved in the client\n",
                 range.device, range.begin, range.end);
    std::exit(1);
  }
}

void expect_disjoint() {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].end <= ranges[i].begin) continue;
    std::fprintf(stderr, "devices %d and %d both have %#" PRIx64 "\n", ranges[i - 1].device,
                 ranges[i].device, ranges[i].begin);
    std::exit(1);
  }
}

int use(const std::vector<CUcontext>& contexts, size_t parts) {
  size_t smallest = ~size_t{0};
  for (current = 0; current < static_cast<int>(contexts.size()); ++current) {
    CHECK(cuCtxSetCurrent(contexts[static_cast<size_t>(current)]));
    size_t total = 0;
    CHECK(cuDeviceTotalMem(&total, current));
    smallest = std::min(smallest, total);
    CUdeviceptr address = 0;
    CHECK(cuMemAlloc(&address, 3 * kSmall));
    add(address, 3 * kSmall, true);
    CHECK(cuMemAlloc(&address, total / 2 / parts));
    add(address, total / 2 / parts, true);
    CHECK(cuMemAllocAsync(&address, total / 8 / parts, nullptr));
    add(address, total / 8 / parts, true);
    CHECK(cuMemAllocManaged(&address, kSmall, CU_MEM_ATTACH_GLOBAL));
    void* pinned = nullptr;
    CHECK(cuMemHostAlloc(&pinned, kSmall, 0));
    std::memset(pinned, current, kSmall);
    use_graph();
    use_reservation(total);
  }
  expect_disjoint();
  expect_reserved();
  for (const Range& range : ranges) {
    if (!range.written) continue;
    unsigned value = 0;
    CUdevice owner = -1;
    check(cuCtxSetCurrent(contexts[static_cast<size_t>(range.device)]), "context", range.device);
    check(cuMemcpyDtoH(&value, range.begin + 4092, sizeof value), "reading", range.device);
    check(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range.begin), "owner");
    if (value != number_of(range) || owner != range.device) {
      std::fprintf(stderr, "device %d: %#" PRIx64 " is of %d and holds %u\n", range.device,
                   range.begin, owner, value);
      return 1;
    }
  }
  std::printf("%zu devices of %zu GiB or more, %zu ranges: all apart and right\n", contexts.size(),
              smallest / kGiB, ranges.size());
  return 0;
}

int exhaust(const std::vector<CUcontext>& contexts) {
  current = 0;
  CHECK(cuCtxSetCurrent(contexts[0]));
  std::vector<CUdeviceptr> reserved;
  CUdeviceptr address = 0;
  constexpr size_t kPiece = 256 * kGiB;
  CUresult result = CUDA_SUCCESS;
  while (reserved.size() < 2000 &&
         (result = cuMemAddressReserve(&address, kPiece, 0, 0, 0)) == CUDA_SUCCESS) {
    reserved.push_back(address);
    ranges.push_back({address, address + kPiece, 0, false});
  }
  expect_disjoint();
  expect_reserved();
  std::printf("refused with %d after some: %d\n", result, !reserved.empty());
  CHECK(cuMemAlloc(&address, kSmall));
  CHECK(cuMemsetD32(address, 1, 1024));
  CHECK(cuMemFree(address));
  for (const CUdeviceptr each : reserved) CHECK(cuMemAddressFree(each, kPiece));
  CHECK(cuMemAddressReserve(&address, kPiece, 0, 0, 0));
  std::printf("and granted again when they were free\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(cuInit(0));
  int count = 0;
  CHECK(cuDeviceGetCount(&count));
  std::vector<CUcontext> contexts(static_cast<size_t>(count));
  for (current = 0; current < count; ++current) {
    CHECK(cuDevicePrimaryCtxRetain(&contexts[static_cast<size_t>(current)], current));
  }
  if (argc > 1 && std::strcmp(argv[1], "exhaust") == 0) return exhaust(contexts);
  return use(contexts, argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1);
}
