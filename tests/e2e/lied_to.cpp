// The server of this program says that device memory is at the address of the program's table of
// functions (lying_driver.cpp). Each kind of memory is tried in a process of its own. The call must
// fail, the table must be unchanged, and one line must say why and name the server.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../programs/driver_checks.h"

namespace {

constexpr size_t kBytes = 128 << 10;
constexpr char kPtx[] =
    ".version 8.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 8 .b8 variable[64];\n.visible .entry k() { ret; }\n";

void honest() {}
alignas(65536) void (*table[kBytes / sizeof(void*)])();

CUmodule module;
CUlibrary library;
CUmemoryPool pool;
CUdeviceptr got;
size_t size;

CUresult pitched() { return cuMemAllocPitch(&got, &size, 64, 16, 4); }
CUresult plain() { return cuMemAlloc(&got, kBytes); }
CUresult in_stream_order() { return cuMemAllocAsync(&got, kBytes, nullptr); }
CUresult from_pool() { return cuMemAllocFromPoolAsync(&got, kBytes, pool, nullptr); }
CUresult managed() { return cuMemAllocManaged(&got, kBytes, CU_MEM_ATTACH_GLOBAL); }
CUresult reserved() { return cuMemAddressReserve(&got, 2 << 20, 0, 0, 0); }
CUresult of_module() { return cuModuleGetGlobal(&got, &size, module, "variable"); }
CUresult of_library() { return cuLibraryGetGlobal(&got, &size, library, "variable"); }
CUresult managed_of_library() { return cuLibraryGetManaged(&got, &size, library, "variable"); }
CUresult of_graph() {
  CUgraph graph;
  CUgraphNode node;
  CU(cuGraphCreate(&graph, 0));
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = kBytes;
  return cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters);
}

// The whole life of one process. Returns whether the program resisted the lie.
bool resists(CUresult (*call)(), int log) {
  CUdevice device;
  CUcontext context;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuModuleLoadData(&module, kPtx));
  CU(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuDeviceGetDefaultMemPool(&pool, device));
  char name[32];
  std::snprintf(name, sizeof name, "lie_%lx", reinterpret_cast<unsigned long>(&table));
  EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&got, &size, module, name));
  const CUresult result = call();
  const CUresult later = cuCtxSynchronize();
  bool is_whole = true;
  for (auto* entry : table) is_whole &= entry == &honest;
  char text[4096] = {};
  (void)!pread(log, text, sizeof text - 1, 0);
  const bool is_told = std::strstr(text, "127.0.0.1:") && std::strstr(text, "protocol error");
  const bool is_right =
      result == CUDA_ERROR_DEVICE_UNAVAILABLE && later == result && is_whole && is_told;
  if (!is_right) {
    std::printf("result %d, later %d, table %s, log: %s\n", result, later,
                is_whole ? "as it was" : "changed", text);
  }
  std::fflush(stdout);
  return is_right;
}

bool check(const char* name, CUresult (*call)()) {
  std::printf("%s: ", name);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int log = memfd_create("log", 0);
    dup2(log, 2);
    std::_Exit(resists(call, log) ? 0 : 1);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) std::printf("%s, status %x\n", name, status);
  if (status == 0) std::puts("refused");
  return status == 0;
}

}  // namespace

// With the argument "own-managed" the client itself manages managed memory, as over shared memory.
// Then it asks no server for an address.
int main(int argc, char** argv) {
  const bool own_managed = argc > 1 && std::strcmp(argv[1], "own-managed") == 0;
  for (auto*& entry : table) entry = &honest;
  bool all = true;
  all &= check("plain", plain);
  all &= check("pitched", pitched);
  all &= check("in stream order", in_stream_order);
  all &= check("from a pool", from_pool);
  if (!own_managed) all &= check("managed", managed);
  all &= check("a reservation", reserved);
  all &= check("a module's variable", of_module);
  all &= check("a library's variable", of_library);
  all &= check("a library's managed variable", managed_of_library);
  all &= check("of a graph", of_graph);
  return all ? 0 : 1;
}
