// Modules, libraries, kernels and functions.
//
// A module and its functions belong to one session. A library and its kernels are independent of
// contexts: each session loads the library when it first needs it. cudart passes a CUkernel where a
// CUfunction is expected. client/code/functions.h declares the operations on these objects.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>

#include "client/objects/object.h"
#include "common/base/mutex.h"
#include "common/cuda/shaped_launch.h"

namespace rcuda::client {

struct Kernel;
struct Library;

using ImageHash = std::array<uint8_t, 32>;  // SHA-256

// The images of one cuModuleLoad* or cuLibraryLoad*.
struct ImageParts {
  std::vector<std::span<const std::byte>> parts;
  std::vector<ImageHash> hashes;
  std::vector<std::vector<std::byte>> copies;  // bytes of `parts` that the client owns
};

struct JitOptions {
  std::vector<CUjit_option> keys;
  std::vector<void*> values;
  std::vector<CUlibraryOption> library_keys;
  std::vector<void*> library_values;
};

// While this count is unchanged, cached stack sizes of contexts are valid (KnownLimits, stream.h).
// Grows when a kernel is launched in another context than at its last launch, and when a graph is
// launched, because such launches may enlarge the stack of the context's threads.
inline std::atomic<uint64_t> stack_change_count{0};
inline uint64_t stack_changes() { return stack_change_count.load(std::memory_order_acquire); }
inline void note_stack_change() { stack_change_count.fetch_add(1, std::memory_order_acq_rel); }

// Data about a function, or about a kernel on one device. The client queries the worker once.
struct FunctionInfo {
  const Session* session = nullptr;
  wire::ObjectId id = 0;  // id of the function or kernel in its session
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  std::array<std::atomic<int32_t>, wire::kFunctionAttributeCount> attributes;

  // Earlier answers of cuOccupancyMaxActiveBlocksPerMultiprocessor: resident blocks by device,
  // block size, shared memory, flags and the attributes that change the answer.
  using OccupancyQuestion = std::tuple<uint32_t, int, size_t, unsigned, int32_t, int32_t>;
  Mutex occupancy_mutex;
  std::map<OccupancyQuestion, int> occupancy RCUDA_GUARDED_BY(occupancy_mutex);
  // Earlier answers of cuOccupancyMaxActiveClusters, by the bytes of the query.
  std::map<std::string, int> active_clusters RCUDA_GUARDED_BY(occupancy_mutex);

  // Pairs of launch attributes and launch shape that the driver has accepted. Any other launch with
  // attributes waits for the worker's answer, so that the call returns the driver's error.
  Mutex launches_mutex;
  std::set<std::string> accepted_launches RCUDA_GUARDED_BY(launches_mutex);  // their keys

  cuda::ShapedLaunch shaped;  // set by cuFuncSetBlockShape and cuParamSet*

  // Call it for each launch, with the context of the launch. Counts a change of the context for
  // stack_changes().
  void note_launch(wire::ObjectId context) {
    if (launched_in.load(std::memory_order_relaxed) == context) [[likely]]
      return;
    launched_in.store(context, std::memory_order_relaxed);
    note_stack_change();
  }
  std::atomic<wire::ObjectId> launched_in{0};  // the context of the last launch
};

// The variables of a module or library that the application has looked up. `buffer_ids`: the
// Registry's buffer id of each variable, by address.
struct Variables {
  Mutex mutex;
  std::map<CUdeviceptr, uint64_t> buffer_ids RCUDA_GUARDED_BY(mutex);
};

struct Function : Object {
  static constexpr wire::Kind kKind = wire::Kind::kFunction;
  explicit Function(const Identity& identity, std::unique_ptr<FunctionInfo> known = nullptr)
      : Object(kKind, identity), info(std::move(known)) {}

  // Null for a function that the worker has named and whose data the client has not queried yet.
  std::unique_ptr<FunctionInfo> info;
  const Kernel* kernel = nullptr;  // the kernel of a library's function; null for cuModuleLoad*
};

// A module of cuModuleLoad* keeps its functions by name, because a driver returns the same handle
// for each lookup of a name. The module of a library in a context (cuLibraryGetModule) has the
// library's variables and the functions of its kernels, and ends with the library.
struct Module : Object {
  static constexpr wire::Kind kKind = wire::Kind::kModule;
  explicit Module(const Identity& identity) : Object(kKind, identity) {}

  // The worker assigns the ids of a library's modules; the client assigns those of cuModuleLoad*.
  bool is_of_library() const { return (id & wire::kWorkerMinted) != 0; }

  struct Global {
    CUdeviceptr address = 0;
    size_t bytes = 0;
  };
  Variables variables;
  std::atomic<Library*> library{nullptr};  // null for a module of cuModuleLoad*
  Mutex mutex;
  std::unordered_map<std::string, Function*> functions RCUDA_GUARDED_BY(mutex);
  // The variables that the application has looked up, by name.
  std::unordered_map<std::string, Global> globals RCUDA_GUARDED_BY(mutex);
};

struct Library : Object {
  static constexpr wire::Kind kKind = wire::Kind::kLibrary;
  Library(const Identity& identity, ImageParts its_image, JitOptions its_options,
          CUresult its_defect = CUDA_SUCCESS)
      : Object(kKind, identity),
        image(std::move(its_image)),
        options(std::move(its_options)),
        defect(its_defect) {}

  const ImageParts image;
  JitOptions options;     // numbers that a driver returns are stored in its `values`
  const CUresult defect;  // of the image; every use of the code returns it
  Variables variables;
  Mutex mutex;
  std::unordered_map<Session*, wire::ObjectId> ids RCUDA_GUARDED_BY(mutex);
  std::unordered_map<std::string, Kernel*> kernels RCUDA_GUARDED_BY(mutex);  // one object per name
};

struct Kernel : Object {
  static constexpr wire::Kind kKind = wire::Kind::kKernel;
  Kernel(const Identity& identity, Library& its_library, std::string its_name)
      : Object(kKind, identity), library(its_library), name(std::move(its_name)) {}

  Library& library;
  const std::string name;
  // The entry of `infos` for first_device, nearly always the only device. Set once, after
  // first_device, with a release store; readers take no lock.
  std::atomic<FunctionInfo*> first_info{nullptr};
  uint32_t first_device = 0;
  Mutex mutex;
  // key: the client's device ordinal
  std::unordered_map<uint32_t, std::unique_ptr<FunctionInfo>> infos RCUDA_GUARDED_BY(mutex);
  // key: the client's device ordinal and the context's id
  std::unordered_map<uint64_t, Function*> functions RCUDA_GUARDED_BY(mutex);
};

// A log buffer of the application, and the option value that gets the size of the log.
struct LogBuffer {
  char* text = nullptr;
  size_t capacity = 0;
  void** size_value = nullptr;
};
struct LogBuffers {
  LogBuffer info, error;
  void** wall_time = nullptr;  // the value of CU_JIT_WALL_TIME
  bool any() const { return info.capacity != 0 || error.capacity != 0 || wall_time; }
};

// A CUlinkState: inputs that the worker's driver links (cuLinkCreate).
struct LinkState : Object {
  static constexpr wire::Kind kKind = wire::Kind::kLinkState;
  explicit LinkState(const Identity& identity) : Object(kKind, identity) {}

  LogBuffers logs;               // the application keeps them alive as long as the state
  std::vector<std::byte> image;  // the result of cuLinkComplete
};

}  // namespace rcuda::client
