// Kernels as the client knows them: how their parameters are packed and what their attributes are,
// asked once per function and session; and libraries, which exist on every session that uses them.
//
// A module's functions (Kind::kFunction) belong to one session. A library (Kind::kLibrary) and its
// kernels (Kind::kKernel) are independent of contexts: they are loaded on a session when it first
// needs them. cudart passes a CUkernel where a CUfunction is expected, so everything here takes
// both. Threads: any. Ownership: Object::extra of the three kinds; freed when the module or library
// goes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "client/session/images.h"
#include "client/session/marshal.h"
#include "client/session/objects.h"
#include "client/session/session.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

struct FunctionInfo {
  const Session* session = nullptr;
  wire::ObjectId id = 0;  // of the function or kernel on its session
  // Functions of a library's kernel: the kernel. Null for other functions, and for kernels.
  const Object* kernel = nullptr;
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

// A setting that the worker took.
void note_attribute(FunctionInfo& info, int which, int value);

// Looks a function or kernel up on a session. `owner`: module or library there.
CUresult ask_function(Session& session, wire::ObjectId context, wire::ObjectId owner,
                      bool is_kernel, const char* name, std::unique_ptr<FunctionInfo>* info);

// The variables of a module or library that were asked for, as Registry knows them.
class Variables {
 public:
  // `managed`: it is mirrored, too.
  void add(CUdeviceptr address, size_t bytes, const Target& target, bool managed);
  // Before the worker is told to unload them: then their memory is no more, or another's.
  void forget();

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, uint64_t> buffer_ids_;
};

// Object::extra of a module. A module that cuModuleLoad* made owns its functions, by name: a driver
// gives the same handle each time. The module of a library in a context (cuLibraryGetModule) has
// the functions of the library's kernels and the library's variables, and goes with the library.
struct ModuleState {
  struct Global {
    CUdeviceptr address = 0;
    size_t bytes = 0;
  };
  Variables variables;
  std::mutex mutex;
  std::unordered_map<std::string, Object*> functions;
  std::unordered_map<std::string, Global> globals;  // those that were asked for
  std::atomic<Object*> library{nullptr};            // null for a module of its own
};

struct JitOptions {
  std::vector<CUjit_option> keys;
  std::vector<void*> values;
  std::vector<CUlibraryOption> library_keys;
  std::vector<void*> library_values;
};

struct ImageParts {
  std::vector<std::span<const std::byte>> parts;
  std::vector<ImageHash> hashes;
  std::vector<std::vector<std::byte>> copies;  // when the application may free its own
};
// What the application's pointer holds, or a file's contents, of which there are just so many
// `bytes`. CUDA_ERROR_INVALID_IMAGE when it is nothing known.
CUresult measure_image(const void* pointer, std::optional<size_t> bytes, ImageParts* image);
// kModuleLoad or kLibraryLoad of an image that is sent first; fills the options' log buffers.
CUresult load_image(Session& session, wire::ObjectId context, wire::Custom opcode,
                    wire::ObjectId id, const ImageParts& image, const JitOptions& options);

class Library {
 public:
  Library(ImageParts image, JitOptions options)
      : image_(std::move(image)), options_(std::move(options)) {}

  // The library's id on a session, where it is loaded now if it was not.
  CUresult id_on(Session& session, wire::ObjectId context, wire::ObjectId* id);
  // Unloads it from every session.
  void unload(Object* library);
  // One object a name; `target` is where to look it up first.
  CUresult kernel(Object* library, const Target& target, const char* name, Object** kernel);
  Variables& variables() { return variables_; }

 private:
  Variables variables_;
  ImageParts image_;
  JitOptions options_;
  std::mutex mutex_;
  std::unordered_map<Session*, wire::ObjectId> loaded_;
  std::unordered_map<std::string, Object*> kernels_;
};

class Kernel {
 public:
  Kernel(Object* library, std::string name) : library_(library), name_(std::move(name)) {}
  ~Kernel();  // its functions go with it
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  Object* library() const { return library_; }
  const std::string& name() const { return name_; }
  // As it is on a device, which has attributes of its own for it.
  CUresult info_on(const Target& target, FunctionInfo** info);
  // Whether it has this id on a session.
  bool is(const Session& session, wire::ObjectId id);
  // An attribute was set for a device, and with it for the functions in that device's contexts.
  void note_attribute(const Target& target, int which, int value);
  // A context was destroyed or reset: its functions are gone. What cuKernelSetAttribute has set
  // stays.
  void forget_context(const Session& session, wire::ObjectId context);
  // The CUfunction of the kernel in a context. `kernel`: the handle of this one.
  CUresult function_in(Object* kernel, const Target& target, Object** function);

 private:
  Object* const library_;
  const std::string name_;
  std::atomic<FunctionInfo*> first_{nullptr};  // of first_device_: nearly always the only one
  uint32_t first_device_ = 0;
  std::mutex mutex_;
  std::unordered_map<uint32_t, std::unique_ptr<FunctionInfo>> infos_;  // by the client's device
  std::unordered_map<uint64_t, Object*> functions_;  // by session's device and context
};

// The module of a library in the target's context.
CUresult library_module(Object* library, const Target& target, CUmodule* module);
// Null when the handle is not a kernel's.
Kernel* kernel_of(const void* handle);
// Kernel::function_in() of a kernel's object.
CUresult function_of(Object* kernel, const Target& target, Object** function);
// The kernel that has this id on a session; null when there is none.
Object* find_kernel(Session& session, wire::ObjectId id);
// Kernel::forget_context() of all kernels.
void forget_kernels_in(const Session& session, wire::ObjectId context);

// A CUfunction or CUkernel as a launch needs it.
struct Callable {
  FunctionInfo* info = nullptr;
  bool is_kernel = false;
};
CUresult resolve_callable(CUfunction handle, const Target& target, Callable* callable);

}  // namespace rcuda::client
