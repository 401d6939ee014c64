#include "server/worker/cleaning.h"

#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mappings.h"
#include "server/executor/core/executor.h"
#include "server/worker/end_watch.h"

namespace rcuda::server {
namespace {

// A program that ends while its kernels run ends them, so a worker does not wait for them for long.
constexpr auto kSettles = std::chrono::milliseconds(100);

// Descriptors by what they are open on. Numbers of sockets and pipes differ, so only their kind
// counts.
void add_descriptors(ProcessState* state) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (error || target.starts_with("/dev/nvidia") || target.starts_with("/proc/")) continue;
    if (const size_t number = target.find(":["); number != std::string::npos) target.resize(number);
    ++(*state)["descriptor of " + target];
  }
}

// Threads of this project, which have names of its own.
void add_threads(ProcessState* state) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (name.starts_with("rcuda")) ++(*state)["thread " + name];
  }
}

// Mapped memory of clients and of this project, which has names of its own. The driver maps other
// files: libraries, and memory of softgpu.
void add_mappings(ProcessState* state) {
  (void)each_mapping([&](const MappedPart&, const std::string& path) {
    if (path.starts_with("/memfd:rcuda")) ++(*state)["mapping of " + path];
    return true;
  });
}

}  // namespace

Leftovers leftovers_of(Executor& executor) {
  Leftovers left;
  left.leaves = executor.leaves;
  executor.objects.for_each_context([&](const ContextState& context) {
    const bool primary = executor.objects.primary_of(context.device) == &context;
    (primary ? left.primaries : left.contexts).push_back(context.handle);
  });
  executor.objects.of(wire::Kind::kLibrary).for_each([&](wire::ObjectId, const Object& library) {
    left.libraries.push_back(static_cast<CUlibrary>(library.handle));
  });
  left.kept = executor.host_memory.kept();
  return left;
}

Status settle(const api::DriverTable& driver, const Leftovers& left,
              const std::function<void()>& before_end) {
  EndWatch watch([] { return Status(Code::kTimeout, "kernels still run"); }, kSettles,
                 [&](const Status&) {
                   before_end();
                   ::_exit(0);
                 });
  RCUDA_RETURN_IF_ERROR(watch.start());
  std::vector<CUcontext> contexts = left.contexts;
  contexts.insert(contexts.end(), left.primaries.begin(), left.primaries.end());
  for (const CUcontext context : contexts) {
    CUresult result = driver.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) result = driver.cuCtxSynchronize();
    if (result != CUDA_SUCCESS) return Status::from_cuda(result, "a context of the session");
  }
  return {};
}

void note_limits(ProcessState* state) {
  for (int resource = 0; resource < static_cast<int>(RLIMIT_NLIMITS); ++resource) {
    rlimit limit{};
    if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) continue;
    const std::string name = "limit " + std::to_string(resource);
    (*state)[name] = limit.rlim_cur;
    (*state)["hard " + name] = limit.rlim_max;
  }
}

DriverState driver_state(const api::DriverTable& driver, CUdevice device, CUcontext primary) {
  DriverState state;
  if (driver.cuCtxSetCurrent(primary) != CUDA_SUCCESS) return state;
  for (int limit = 0; limit < CU_LIMIT_MAX; ++limit) {
    size_t value = 0;
    if (driver.cuCtxGetLimit(&value, static_cast<CUlimit>(limit)) == CUDA_SUCCESS) {
      state["limit " + std::to_string(limit) + " of the context"] = value;
    }
  }
  unsigned flags = 0;
  int active = 0;
  if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS) {
    state["flags of the context"] = flags;
  }
  CUfunc_cache cache{};
  if (driver.cuCtxGetCacheConfig(&cache) == CUDA_SUCCESS) state["cache of the context"] = cache;
  CUmemoryPool pool = nullptr, current = nullptr;
  if (driver.cuDeviceGetDefaultMemPool(&pool, device) == CUDA_SUCCESS &&
      driver.cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS) {
    state["another pool than the default one"] = pool != current;
    for (int attribute = 1; attribute <= CU_MEMPOOL_ATTR_USED_MEM_CURRENT; ++attribute) {
      if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) continue;
      uint64_t value = 0;  // some of the attributes have 32 bits
      if (driver.cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), &value) ==
          CUDA_SUCCESS) {
        state["attribute " + std::to_string(attribute) + " of the pool"] = value;
      }
    }
  }
  uint64_t graphs = 0;
  if (driver.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                          &graphs) == CUDA_SUCCESS) {
    state["memory of graphs"] = graphs;
  }
  return state;
}

ProcessState process_state() {
  ProcessState state;
  note_limits(&state);
  add_descriptors(&state);
  add_threads(&state);
  add_mappings(&state);
  for (char** variable = environ; variable && *variable; ++variable) {
    ++state["variable " + std::string(*variable)];
  }
  std::error_code error;
  ++state["working directory " + std::filesystem::current_path(error).string()];
  const mode_t mask = ::umask(077);
  ::umask(mask);
  state["umask"] = mask;
  return state;
}

Status compare(const std::map<std::string, uint64_t>& before,
               const std::map<std::string, uint64_t>& after) {
  const auto value = [](const auto& state, const std::string& name) {
    const auto found = state.find(name);
    return found == state.end() ? uint64_t{0} : found->second;
  };
  for (const auto* side : {&before, &after}) {
    for (const auto& [name, ignored] : *side) {
      const uint64_t was = value(before, name), is = value(after, name);
      if (was == is) continue;
      return {Code::kInternal,
              name + ": " + std::to_string(was) + " before, " + std::to_string(is) + " now"};
    }
  }
  return {};
}

}  // namespace rcuda::server
