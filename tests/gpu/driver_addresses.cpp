// Shows which addresses a driver uses for memory, and whether a process can choose them after the
// driver has started. The address windows of sessions depend on this (docs/architecture.md,
// "Addresses").
//
//   driver_addresses               every scenario, each in a process of its own
//   driver_addresses NAME [...]    one scenario: free, hints, early, based
//
//   free     no address is closed: at which addresses is each kind of memory?
//   hints    which hints of the 47-bit address space does cuMemAddressReserve() follow, and how
//            many bytes can it reserve?
//   early    all addresses outside a window are closed before the driver starts
//   based    as in a worker: the driver starts in a base, and all other addresses are closed. Then
//            a window is opened elsewhere. Memory of every kind must be in the base or the window
//
// A closed address has an inaccessible mapping of this program. Each line has the kind of memory,
// its address, and "in" or "OUT" if there is a window. Needs a GPU. Exit status: 0, or 2 without a
// result.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/driver_table.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kUserEnd = 0x7fff'ffff'f000;
constexpr uint64_t kLowest = 1ull << 32;
constexpr uint64_t kFenceBegin = 0x3'0000'0000;  // as in common/wire/address_ranges.h
constexpr uint64_t kTiB = 1ull << 40;
constexpr uint64_t kGiB = 1ull << 30;
constexpr size_t kPage = size_t{2} << 20;

constexpr char kPtx[] = R"(
.version 7.8
.target sm_70
.address_size 64
.visible .global .align 4 .b8 words[262144];
.visible .entry nothing() { ret; }
)";

struct Range {
  uint64_t begin = 0, end = 0;
};

rcuda::api::DriverTable cu;
Range window;  // empty: none
Range base;    // the driver started in this range; empty: none
uint64_t device_bytes = 0;
size_t outside_count = 0;

bool lies_in(const Range& range, uint64_t address, uint64_t bytes) {
  return address >= range.begin && address < range.end && bytes <= range.end - address;
}

bool is_inside(uint64_t address, uint64_t bytes) {
  return lies_in(window, address, bytes) || lies_in(base, address, bytes);
}

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void say(const char* kind, CUresult result, uint64_t address, uint64_t bytes, double ms) {
  const char* where = "";
  if (result != CUDA_SUCCESS) {
    std::printf("  %-26s error %d (%.1f ms)\n", kind, result, ms);
    return;
  }
  if (window.end) {
    where = is_inside(address, bytes) ? " in" : " OUT";
    outside_count += !is_inside(address, bytes);
  }
  std::printf("  %-26s %#" PRIx64 "%s (%.1f ms)\n", kind, address, where, ms);
}

template <typename Call>
uint64_t place(const char* kind, uint64_t bytes, Call call) {
  CUdeviceptr address = 0;
  const Clock::time_point start = Clock::now();
  const CUresult result = call(&address);
  say(kind, result, address, bytes, since(start));
  return result == CUDA_SUCCESS ? address : 0;
}

std::vector<Range> mappings() {
  std::vector<Range> all;
  std::FILE* file = std::fopen("/proc/self/maps", "re");
  char line[4352];
  while (file && std::fgets(line, sizeof line, file)) {
    Range range;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64, &range.begin, &range.end) == 2) {
      if (std::strstr(line, "[stack]")) range.begin -= 64u << 20;
      all.push_back(range);
    }
  }
  if (file) std::fclose(file);
  return all;
}

// Prints the mappings of this process that have 64 MiB or more.
void show_mappings() {
  for (const Range& range : mappings()) {
    if (range.end - range.begin >= 64u << 20 && range.end <= kUserEnd) {
      std::printf("  mapped %#" PRIx64 "-%#" PRIx64 " (%" PRIu64 " MiB)\n", range.begin, range.end,
                  (range.end - range.begin) >> 20);
    }
  }
}

void close_range(uint64_t from, uint64_t to) {
  uint64_t at = from;
  const auto close_gap = [](uint64_t begin, uint64_t end) {
    void* const wanted = reinterpret_cast<void*>(begin);
    if (::mmap(wanted, end - begin, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
               0) != wanted) {
      std::printf("  cannot close %#" PRIx64 "-%#" PRIx64 "\n", begin, end);
    }
  };
  for (const Range& range : mappings()) {
    if (range.end <= at) continue;
    if (range.begin >= to) break;
    if (range.begin > at) close_gap(at, range.begin);
    at = range.end;
  }
  if (at < to) close_gap(at, to);
}

void close_outside(uint64_t base, uint64_t bytes, bool below) {
  window = {base, base + bytes};
  if (below) close_range(kLowest, window.begin);
  close_range(window.end, kUserEnd);
}

CUcontext start() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  const Clock::time_point begin = Clock::now();
  if (cu.cuInit(0) != CUDA_SUCCESS || cu.cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cu.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS ||
      cu.cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    std::printf("  no context\n");
    std::exit(2);
  }
  size_t bytes = 0;
  cu.cuDeviceTotalMem_v2(&bytes, device);
  device_bytes = bytes;
  std::printf("  started in %.0f ms, %" PRIu64 " MiB of memory\n", since(begin), device_bytes >> 20);
  return context;
}

CUmemPoolProps pool_properties() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  return properties;
}

void place_pools(int count) {
  place("default pool 4M", 4u << 20, [](CUdeviceptr* out) {
    return cu.cuMemAllocAsync(out, 4u << 20, nullptr);
  });
  place("default pool 4G", 4 * kGiB, [](CUdeviceptr* out) {
    return cu.cuMemAllocAsync(out, 4 * kGiB, nullptr);
  });
  for (int i = 0; i < count; ++i) {
    const CUmemPoolProps properties = pool_properties();
    CUmemoryPool pool = nullptr;
    if (const CUresult made = cu.cuMemPoolCreate(&pool, &properties); made != CUDA_SUCCESS) {
      std::printf("  pool %d: error %d\n", i, made);
      return;
    }
    place("another pool 4M", 4u << 20, [&](CUdeviceptr* out) {
      return cu.cuMemAllocFromPoolAsync(out, 4u << 20, pool, nullptr);
    });
  }
  CUmemPoolProps small = pool_properties();
  small.maxSize = kGiB;
  CUmemoryPool pool = nullptr;
  if (cu.cuMemPoolCreate(&pool, &small) == CUDA_SUCCESS) {
    place("pool of at most 1G", 4u << 20, [&](CUdeviceptr* out) {
      return cu.cuMemAllocFromPoolAsync(out, 4u << 20, pool, nullptr);
    });
  }
}

uint64_t reserve(const char* kind, uint64_t bytes, uint64_t hint = 0, uint64_t align = 0) {
  return place(kind, bytes, [&](CUdeviceptr* out) {
    return cu.cuMemAddressReserve(out, bytes, align, hint, 0);
  });
}

// Allocates 64 MiB in blocks of `bytes`. Prints how many blocks are outside of the window, and
// which of these blocks are the first and the last.
void place_small(size_t bytes) {
  const size_t count = std::min<size_t>((size_t{64} << 20) / bytes, 20000);
  size_t outside = 0;
  size_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    CUdeviceptr address = 0;
    if (cu.cuMemAlloc_v2(&address, bytes) != CUDA_SUCCESS) break;
    if (is_inside(address, bytes)) continue;
    ++outside;
    ++outside_count;
    last = i;
    if (outside == 1) std::printf("  first outside: number %zu, %#llx\n", i, address);
  }
  std::printf("  %zu blocks of %zu bytes: %zu outside, the last is number %zu\n", count, bytes,
              outside, last);
}

void place_graph_memory() {
  CUgraph graph = nullptr;
  cu.cuGraphCreate(&graph, 0);
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps = pool_properties();
  parameters.bytesize = 4u << 20;
  CUgraphNode node = nullptr;
  place("graph memory 4M", 4u << 20, [&](CUdeviceptr* out) {
    const CUresult result = cu.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters);
    *out = parameters.dptr;
    return result;
  });
}

void place_module() {
  CUmodule module = nullptr;
  if (const CUresult loaded = cu.cuModuleLoadData(&module, kPtx); loaded != CUDA_SUCCESS) {
    std::printf("  module: error %d\n", loaded);
    return;
  }
  place("variable of a module", 262144, [&](CUdeviceptr* out) {
    size_t bytes = 0;
    return cu.cuModuleGetGlobal_v2(out, &bytes, module, "words");
  });
  CUfunction function = nullptr;
  cu.cuModuleGetFunction(&function, module, "nothing");
  const CUresult launched =
      cu.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
  const CUresult ended = cu.cuCtxSynchronize();
  CUcontext before = nullptr;
  CUcontext other = nullptr;
  cu.cuCtxGetCurrent(&before);
  const CUresult made = cu.cuCtxCreate_v4 ? cu.cuCtxCreate_v4(&other, nullptr, 0, 0)
                                          : cu.cuCtxCreate_v2(&other, 0, 0);
  place("plain 4M, other context", 4u << 20,
        [](CUdeviceptr* out) { return cu.cuMemAlloc_v2(out, 4u << 20); });
  const CUresult sized = cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16u << 10);
  cu.cuCtxDestroy_v2(other);
  cu.cuCtxSetCurrent(before);
  std::printf("  launch %d, end %d, other context %d, stack size %d\n", launched, ended, made, sized);
}

void place_all() {
  const auto plain = [](size_t bytes) {
    return [bytes](CUdeviceptr* out) { return cu.cuMemAlloc_v2(out, bytes); };
  };
  place("plain 512", 512, plain(512));
  place("plain 4M", 4u << 20, plain(4u << 20));
  place("plain 8G", 8 * kGiB, plain(8 * kGiB));
  place("pinned 1M", 1u << 20, [](CUdeviceptr* out) {
    void* got = nullptr;
    const CUresult result = cu.cuMemHostAlloc(&got, 1u << 20, 0);
    *out = reinterpret_cast<CUdeviceptr>(got);
    return result;
  });
  place("managed 4M", 4u << 20, [](CUdeviceptr* out) {
    return cu.cuMemAllocManaged(out, 4u << 20, CU_MEM_ATTACH_GLOBAL);
  });
  place_module();
  place_graph_memory();
  place_pools(2);
  reserve("reservation 2M", kPage);
  reserve("reservation 64G", 64 * kGiB);
  reserve("reservation 2 x memory", 2 * (device_bytes + kPage - 1) / kPage * kPage);
  reserve("reservation 1G of 1G", kGiB, 0, kGiB);
  if (window.end) {
    reserve("with a hint in the window", 64 * kGiB, window.begin + (window.end - window.begin) / 2);
    reserve("with a hint outside", 64 * kGiB, window.begin - 2 * kTiB);
    place_small(512);
    place_small(96u << 10);
  }
}

void scenario_free() {
  start();
  show_mappings();
  place_all();
  show_mappings();
}

void scenario_hints() {
  start();
  for (const uint64_t hint :
       {0x1'0000'0000u * 1ull, 0x100'0000'0000ull, 0x800'0000'0000ull, 0x1100'0000'0000ull,
        0x2000'0000'0000ull, 0x3000'0000'0000ull, 0x4000'0000'0000ull, 0x4fff'0000'0000ull,
        0x5800'0000'0000ull, 0x6500'0000'0000ull, 0x7000'0000'0000ull, 0x7e00'0000'0000ull,
        0x8000'0000'0000ull, 0x1'0000'0000'0000ull, 0x2000'0010'0000ull}) {
    char kind[64];
    std::snprintf(kind, sizeof kind, "hint %#" PRIx64, hint);
    reserve(kind, 64 * kGiB, hint);
  }
  for (const uint64_t bytes : {kTiB, 4 * kTiB, 16 * kTiB, 64 * kTiB, 100 * kTiB}) {
    char kind[64];
    std::snprintf(kind, sizeof kind, "reservation %" PRIu64 "T", bytes / kTiB);
    const uint64_t got = reserve(kind, bytes);
    if (got) cu.cuMemAddressFree(got, bytes);
  }
  // Can memory be mapped, filled and read at a reserved hint?
  const uint64_t base = reserve("2T at a hint", 2 * kTiB, 0x2100'0000'0000);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  unsigned value = 0;
  const CUresult made = cu.cuMemCreate(&handle, kPage, &properties, 0);
  const CUresult mapped = base ? cu.cuMemMap(base + kTiB, kPage, 0, handle, 0) : made;
  const CUresult opened = cu.cuMemSetAccess(base + kTiB, kPage, &access, 1);
  const CUresult filled = cu.cuMemsetD32_v2(base + kTiB, 42, 1024);
  const CUresult read = cu.cuMemcpyDtoH_v2(&value, base + kTiB + 4092, 4);
  std::printf("  use: %d %d %d %d %d, value %u\n", made, mapped, opened, filled, read, value);
}

void scenario_early(uint64_t base, uint64_t bytes, bool below) {
  std::printf(" window %#" PRIx64 ", %" PRIu64 " GiB, %s\n", base, bytes / kGiB,
              below ? "closed on both sides" : "closed above");
  close_outside(base, bytes, below);
  start();
  place_all();
}

// ---- based -------------------------------------------------------------------------------------

// Prints how many bytes the driver's start has mapped in the base and below the fence, and the end
// of the highest mapping below the fence.
void show_base() {
  uint64_t used = 0, low = 0, low_used = 0;
  for (const Range& range : mappings()) {
    if (lies_in(base, range.begin, range.end - range.begin)) used += range.end - range.begin;
    if (range.end <= kFenceBegin) {
      low = std::max(low, range.end);
      low_used += range.end - range.begin;
    }
  }
  std::printf("  the start took %" PRIu64 " MiB of the base, and %" PRIu64 " MiB below %#" PRIx64
              " (up to %#" PRIx64 ")\n",
              used >> 20, low_used >> 20, kFenceBegin, low);
}

void open_window(uint64_t begin, uint64_t bytes) {
  window = {begin, begin + bytes};
  const Clock::time_point start = Clock::now();
  ::munmap(reinterpret_cast<void*>(begin), bytes);
  std::printf("  window %#" PRIx64 ", %" PRIu64 " GiB, opened in %.2f ms\n", begin, bytes / kGiB,
              since(start));
}

// Allocates and frees memory of many sizes. Then the driver also releases some of its mappings.
void churn() {
  std::vector<std::pair<CUdeviceptr, bool>> held;
  uint32_t state = 12345;
  const auto random = [&](uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  size_t outside = 0;
  for (int round = 0; round < 3000; ++round) {
    if (!held.empty() && random(2)) {
      const size_t which = random(static_cast<uint32_t>(held.size()));
      const auto [address, pinned] = held[which];
      if (pinned) {
        cu.cuMemFreeHost(reinterpret_cast<void*>(address));
      } else {
        cu.cuMemFree_v2(address);
      }
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    const size_t bytes = size_t{512} << random(18);
    const bool pinned = random(4) == 0;
    CUdeviceptr address = 0;
    void* host = nullptr;
    const CUresult result =
        pinned ? cu.cuMemHostAlloc(&host, bytes, 0) : cu.cuMemAlloc_v2(&address, bytes);
    if (result != CUDA_SUCCESS) continue;
    if (pinned) address = reinterpret_cast<CUdeviceptr>(host);
    outside += !is_inside(address, bytes);
    held.emplace_back(address, pinned);
  }
  outside_count += outside;
  std::printf("  allocated and freed 3000 times: %zu outside\n", outside);
}

// Prints the free addresses outside of base and window. The driver leaves them when it unmaps
// memory.
void show_holes() {
  uint64_t at = kFenceBegin;
  size_t holes = 0;
  const auto hole = [&](uint64_t begin, uint64_t end) {
    if (begin >= end || lies_in(window, begin, 1) || lies_in(base, begin, 1)) return;
    if (++holes <= 5) std::printf("  hole %#" PRIx64 "-%#" PRIx64 "\n", begin, end);
  };
  for (const Range& range : mappings()) {
    if (range.end <= at) continue;
    if (range.begin > kUserEnd) break;
    hole(at, range.begin);
    at = range.end;
  }
  std::printf("  %zu holes\n", holes);
}

// Opens memory of another process, which has no fence.
void place_foreign(int handles) {
  CUipcMemHandle handle{};
  if (::read(handles, &handle, sizeof handle) != sizeof handle) {
    std::printf("  no memory of another process\n");
    return;
  }
  place("memory of another process", 64u << 20, [&](CUdeviceptr* out) {
    return cu.cuIpcOpenMemHandle_v2(out, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  });
}

// Starts a process that exports memory. It ends when the other end of its pipe is closed.
int start_exporter() {
  int handles[2] = {-1, -1};
  if (::pipe(handles) != 0 || ::fork() != 0) {
    ::close(handles[1]);
    return handles[0];
  }
  ::alarm(30);
  std::freopen("/dev/null", "w", stdout);
  start();
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  cu.cuMemAlloc_v2(&address, 64u << 20);
  if (cu.cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS) {
    (void)!::write(handles[1], &handle, sizeof handle);
  }
  ::sleep(20);
  ::_exit(0);
}

void scenario_based(uint64_t base_bytes, uint64_t window_begin, uint64_t window_bytes) {
  const int handles = start_exporter();
  base = {0x6800'0000'0000, 0x6800'0000'0000 + base_bytes};
  std::printf(" base of %" PRIu64 " GiB\n", base_bytes / kGiB);
  close_range(kFenceBegin, base.begin);
  close_range(base.end, kUserEnd);
  start();
  void* pinned = nullptr;
  cu.cuMemHostAlloc(&pinned, 256u << 20, 0);
  show_base();
  open_window(window_begin, window_bytes);
  place_all();
  place_foreign(handles);
  churn();
  show_holes();
  std::printf(" base of %" PRIu64 " GiB: %zu addresses outside\n", base_bytes / kGiB,
              outside_count);
}

void run(const char* title, void (*scenario)()) {
  std::printf("%s\n", title);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    scenario();
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status)) std::printf("  ended with status %#x\n", status);
}

}  // namespace

int main(int argc, char** argv) {
  const rcuda::Status loaded = rcuda::api::load(&cu, "libcuda.so.1");
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.message().c_str());
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto wanted = [&](const char* name) {
    return argc < 2 || std::any_of(argv + 1, argv + argc,
                                   [&](const char* given) { return !std::strcmp(given, name); });
  };
  if (wanted("free")) run("free", scenario_free);
  if (wanted("hints")) run("hints", scenario_hints);
  if (wanted("early")) {
    run("early", [] { scenario_early(0x6800'0000'0000, kTiB, false); });
    run("early", [] { scenario_early(0x6800'0000'0000, kTiB, true); });
    run("early", [] { scenario_early(0x2100'0000'0000, kTiB, true); });
  }
  if (wanted("based")) {
    run("based", [] { scenario_based(kTiB, 0x2100'0000'0000, 3 * kTiB / 2); });
    run("based", [] { scenario_based(64 * kGiB, 0x2100'0000'0000, 3 * kTiB / 2); });
    run("based", [] { scenario_based(64 * kGiB, 0x7000'0000'0000, 3 * kTiB / 2); });
    run("based", [] { scenario_based(16 * kGiB, 0x0200'0000'0000, kTiB / 4); });
    run("based", [] { scenario_based(4 * kGiB, 0x2100'0000'0000, 3 * kTiB / 2); });
  }
  return 0;
}
