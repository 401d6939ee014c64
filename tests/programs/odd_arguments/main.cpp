// Results of the driver API for unknown enumerators, unknown flags, sizes and counts of zero, and
// arrays without room. Null pointers are in null_pointers.cpp. Arguments that a driver does not
// check, such as invalid handles, are left out.
#include <csignal>
#include <cstdlib>
#include <set>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "show.h"

const char kPtx[] = R"(
.version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 words[4];
.visible .entry empty() { ret; }
.visible .entry three(.param .u32 a, .param .u64 b, .param .u32 c) { ret; }
)";

namespace {

struct Shared {
  int number;  // the number of the call in progress
  char call[200];
};

Shared* shared = nullptr;
std::set<int> left_out;
int number = 0;       // the number of the latest call
int first_shown = 0;  // an earlier child has printed the calls before it

bool shown() { return number >= first_shown; }

constexpr void (*kLists[])(const World&) = {
    devices,    contexts, code,    linking,        launches,         memory,
    attributes, copies,   managed, virtual_memory, mapped_in_pieces, pools,
    arrays,     streams,  events,  graphs,         graph_nodes};

void make(World* w) {
  CU(cuInit(0));
  CU(cuDeviceGet(&w->device, 0));
  CU(cuDevicePrimaryCtxRetain(&w->context, w->device));
  CU(cuCtxSetCurrent(w->context));
  CU(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
  CU(cuModuleLoadData(&w->module, kPtx));
  CU(cuModuleGetFunction(&w->function, w->module, "empty"));
  CU(cuLibraryLoadData(&w->library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CU(cuLibraryGetKernel(&w->kernel, w->library, "three"));
  w->here.type = CU_MEM_LOCATION_TYPE_DEVICE;
}

int run() {
  World world;
  make(&world);
  for (const auto list : kLists) list(world);
  CU(cuCtxSynchronize());
  std::fflush(stdout);
  return 0;
}

// Runs the lists in a child process. If a call ends the child, runs them again without the call.
int survive() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  shared = static_cast<Shared*>(memory);
  while (true) {
    std::fflush(stdout);
    shared->number = 0;
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      std::exit(run());
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    std::printf("\n  killed by signal %d in %s\n", WTERMSIG(status), shared->call);
    if (shared->number == 0 || !left_out.insert(shared->number).second) return 1;
    first_shown = shared->number + 1;
  }
}

}  // namespace

bool announce(const char* call) {
  ++number;
  shared->number = number;
  std::snprintf(shared->call, sizeof shared->call, "%s", call);
  if (left_out.count(number) != 0) return false;
  if (shown()) std::printf("  %-76s ", call);
  std::fflush(stdout);
  return true;
}

void show(CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  if (shown()) std::puts(name);
}

void expect_success(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  if (shown()) std::printf("  needed: %s: ", call);
  show(result);
}

void show_value(const char* name, long long result) {
  if (shown()) std::printf("    %s: %lld\n", name, result);
}

int main() { return survive(); }
