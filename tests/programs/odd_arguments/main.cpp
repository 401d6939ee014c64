// What the driver API returns for unknown enumerators, unknown flags, sizes and counts of zero, and
// arrays without room. Null pointers are in null_pointers.cpp. Left out is what a driver does not
// check, such as handles that never were any.
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
  int number;  // of the call in progress
  char call[200];
};

Shared* shared = nullptr;  // with --survive
std::set<int> left_out;
int number = 0;       // of the latest call
int first_shown = 1;  // earlier calls have printed in an earlier child

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

void run(void (*list)(const World&)) {
  World world;
  make(&world);
  list(world);
  CU(cuCtxSynchronize());
}

int survive() {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  shared = static_cast<Shared*>(memory);
  for (const auto list : kLists) {
    left_out.clear();
    first_shown = 1;
    while (true) {
      std::fflush(stdout);
      shared->number = 0;
      const pid_t child = fork();
      if (child == 0) {
        alarm(60);
        run(list);
        std::fflush(stdout);
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status)) {
        if (WEXITSTATUS(status) != 0) std::printf("  the list has ended early\n");
        break;
      }
      std::printf("  killed by signal %d in %s\n", WTERMSIG(status), shared->call);
      if (shared->number == 0 || !left_out.insert(shared->number).second) break;
      first_shown = shared->number + 1;
    }
  }
  return 0;
}

}  // namespace

bool announce(const char* call) {
  ++number;
  if (shared) {
    shared->number = number;
    std::snprintf(shared->call, sizeof shared->call, "%s", call);
    if (left_out.count(number) != 0) return false;
  }
  if (shown()) std::printf("  %-76s ", call);
  std::fflush(stdout);
  return true;
}

void show(CUresult result) {
  const char* name = "?";
  cuGetErrorName(result, &name);
  if (shown()) std::puts(name);
}

void show_value(const char* name, long long result) {
  if (shown()) std::printf("    %s: %lld\n", name, result);
}

int main(int count, char**) {
  if (count > 1) return survive();
  World world;
  make(&world);
  for (const auto list : kLists) list(world);
  CU(cuCtxSynchronize());
}
