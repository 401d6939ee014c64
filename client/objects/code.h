// Modules, libraries, kernels and functions.
//
// A module and its functions belong to one session. A library and its kernels are independent of
// contexts: they are loaded on a session when it first needs them. cudart passes a CUkernel where a
// CUfunction is expected. session/functions.h has what can be done with them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cuda.h>

#include "client/objects/object.h"

namespace rcuda::client {

struct Kernel;
struct Library;

using ImageHash = std::array<uint8_t, 32>;  // SHA-256

// The images of one cuModuleLoad* or cuLibraryLoad*.
struct ImageParts {
  std::vector<std::span<const std::byte>> parts;
  std::vector<ImageHash> hashes;
  std::vector<std::vector<std::byte>> copies;  // when the application may free its own
};

struct JitOptions {
  std::vector<CUjit_option> keys;
  std::vector<void*> values;
  std::vector<CUlibraryOption> library_keys;
  std::vector<void*> library_values;
};

// What is known of a function, or of a kernel on one device: asked once.
struct FunctionInfo {
  const Session* session = nullptr;
  wire::ObjectId id = 0;  // of the function or kernel on its session
  std::vector<wire::ParameterInfo> parameters;
  uint32_t parameter_bytes = 0;
  std::array<std::atomic<int32_t>, wire::kFunctionAttributeCount> attributes;

  // Resident blocks, by device, block size, shared memory, flags and the attributes that change the
  // answer: what cuOccupancyMaxActiveBlocksPerMultiprocessor was told before.
  using OccupancyQuestion = std::tuple<uint32_t, int, size_t, unsigned, int32_t, int32_t>;
  std::mutex occupancy_mutex;
  std::map<OccupancyQuestion, int> occupancy;

  // Attributes of launches that the driver took, with the shapes that it judges them by: what is
  // not among them is asked about in a round trip, so that a refusal comes from the launch itself.
  std::mutex launches_mutex;
  std::set<std::vector<std::byte>> accepted_launches;
};

// The variables of a module or library that were asked for, by address: Registry's buffer ids.
struct Variables {
  std::mutex mutex;
  std::map<CUdeviceptr, uint64_t> buffer_ids;
};

struct Function : Object {
  static constexpr wire::Kind kKind = wire::Kind::kFunction;
  explicit Function(const Identity& identity, std::unique_ptr<FunctionInfo> known = nullptr)
      : Object(kKind, identity), info(std::move(known)) {}

  std::unique_ptr<FunctionInfo> info;  // null: the worker named it, and nobody asked about it yet
  const Kernel* kernel = nullptr;      // of a library, whose function it is
};

// A module that cuModuleLoad* made owns its functions, by name: a driver gives the same handle each
// time. The module of a library in a context (cuLibraryGetModule) has the functions of the
// library's kernels and the library's variables, and goes with the library.
struct Module : Object {
  static constexpr wire::Kind kKind = wire::Kind::kModule;
  explicit Module(const Identity& identity) : Object(kKind, identity) {}

  // The driver names a library's modules; those of cuModuleLoad* are named by the client.
  bool is_of_library() const { return (id & wire::kWorkerMinted) != 0; }

  struct Global {
    CUdeviceptr address = 0;
    size_t bytes = 0;
  };
  Variables variables;
  std::atomic<Library*> library{nullptr};  // null for a module of its own
  std::mutex mutex;                        // of what follows
  std::unordered_map<std::string, Function*> functions;
  std::unordered_map<std::string, Global> globals;  // those that were asked for
};

struct Library : Object {
  static constexpr wire::Kind kKind = wire::Kind::kLibrary;
  Library(const Identity& identity, ImageParts its_image, JitOptions its_options)
      : Object(kKind, identity), image(std::move(its_image)), options(std::move(its_options)) {}

  const ImageParts image;
  JitOptions options;  // what a driver writes back goes into the application's memory
  Variables variables;
  std::mutex mutex;  // of what follows
  std::unordered_map<Session*, wire::ObjectId> ids;
  std::unordered_map<std::string, Kernel*> kernels;  // one object a name
};

struct Kernel : Object {
  static constexpr wire::Kind kKind = wire::Kind::kKernel;
  Kernel(const Identity& identity, Library& its_library, std::string its_name)
      : Object(kKind, identity), library(its_library), name(std::move(its_name)) {}

  Library& library;
  const std::string name;
  std::atomic<FunctionInfo*> first_info{nullptr};  // of first_device: nearly always the only one
  uint32_t first_device = 0;
  std::mutex mutex;                                                   // of what follows
  std::unordered_map<uint32_t, std::unique_ptr<FunctionInfo>> infos;  // by the client's device
  std::unordered_map<uint64_t, Function*> functions;  // by the client's device and the context
};

}  // namespace rcuda::client
