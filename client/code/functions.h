// Operations on functions, libraries and kernels (objects/code.h): query the worker about them,
// load a library in a session, find the function of a launch.
//
// Threads: any. A call that must query the worker blocks for a round trip. The client queries a
// function once, and a kernel once per device.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <cuda.h>

#include "client/objects/code.h"
#include "client/session/route.h"
#include "client/session/session.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// ---- functions ---------------------------------------------------------------------------------

// Updates `info` after the attribute was set in the worker.
void note_attribute(FunctionInfo& info, int which, int value);

// A query about a function or kernel, in two steps: send() and answer().
class FunctionQuestion {
 public:
  // Sends the query. `owner`: the worker's id of the module or library. After CUDA_SUCCESS, the
  // caller must call answer().
  CUresult send(Session& session, wire::ObjectId context, wire::ObjectId owner, bool is_kernel,
                const char* name);
  // Blocks until the worker has answered.
  CUresult answer(std::unique_ptr<FunctionInfo>* info);

 private:
  Session* session_ = nullptr;
  wire::Kind kind_{};
  std::unique_ptr<FunctionInfo> found_;
  Session::PendingCall call_;
};
// Sends the query and waits for its answer.
CUresult ask_function(Session& session, wire::ObjectId context, wire::ObjectId owner,
                      bool is_kernel, const char* name, std::unique_ptr<FunctionInfo>* info);

// A function whose data the client has queried together with the load of its image, in one round
// trip. The client does this only for images with few functions, such as code that is compiled at
// run time.
struct LoadedFunction {
  std::string name;
  std::unique_ptr<FunctionInfo> info;
};
using LoadedFunctions = std::vector<LoadedFunction>;

// A CUfunction or CUkernel, resolved for a launch.
struct Callable {
  FunctionInfo* info = nullptr;
  bool is_kernel = false;
};
CUresult resolve_callable(CUfunction handle, const Route& route, Callable* callable);

// ---- variables ---------------------------------------------------------------------------------

// Adds the variable to the Registry, at the address that the worker has returned. `managed`: the
// memory is also mirrored, at this address. Errors: those of record_memory() and mirror_at().
CUresult add_variable(Variables& variables, CUdeviceptr address, size_t bytes, const Route& route,
                      bool managed);
// Removes the variables from the Registry and ends their mirrors. Call it before the unload is
// sent: the unload frees the memory, and another thread may then get the same addresses.
void forget_variables(Variables& variables);

// ---- libraries ---------------------------------------------------------------------------------

// Returns the library's id in a session. Loads the library if the session has not loaded it.
// `functions` (may be null): if this call loads the library and the image has few functions,
// receives these functions.
CUresult id_on(Library& library, Session& session, wire::ObjectId context, wire::ObjectId* id,
               LoadedFunctions* functions = nullptr);
// Adds a kernel to the library: the one that `function` describes. Call it after the route's
// session has loaded the library.
void add_kernel(Library& library, const Route& route, LoadedFunction function);
// Returns the module of a library in the route's context.
CUresult library_module(Library& library, const Route& route, CUmodule* module);
// Returns the library's kernel with this name. The first call for a name queries the worker of
// `route`.
CUresult find_kernel(Library& library, const Route& route, const char* name, Kernel** kernel);
// Unloads the library from every session. Destroys it, its kernels and its modules; their handles
// become invalid.
void unload(Library& library);

// ---- kernels -----------------------------------------------------------------------------------

// Returns the kernel's data on the route's device. Each device has its own attributes.
CUresult info_on(Kernel& kernel, const Route& route, FunctionInfo** info);
// Records an attribute that was set for the route's device. The attribute also applies to the
// kernel's functions in the contexts of that device.
void note_attribute(Kernel& kernel, const Route& route, int which, int value);
// Returns the kernel's function in the route's context.
CUresult function_in(Kernel& kernel, const Route& route, Function** function);
// Returns the kernel with this id on a session, or null.
Kernel* find_kernel(const Session& session, wire::ObjectId id);
// Call it before a context is destroyed or reset, because the kernels' functions in this context
// end with it. Attributes set by cuKernelSetAttribute stay.
void forget_kernels_in(const Session& session, wire::ObjectId context);

}  // namespace rcuda::client
