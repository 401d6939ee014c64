// What can be done with modules' functions, libraries and their kernels (objects/code.h): asking
// the worker about them, loading a library on a session, finding the function that a launch means.
//
// Threads: any. What asks the worker blocks for a round trip; each thing is asked once.
#pragma once

#include <cstddef>
#include <memory>

#include <cuda.h>

#include "client/channel/target.h"
#include "client/objects/code.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

// ---- functions ---------------------------------------------------------------------------------

// A setting that the worker took.
void note_attribute(FunctionInfo& info, int which, int value);

// Looks a function or kernel up on a session. `owner`: module or library there.
CUresult ask_function(Session& session, wire::ObjectId context, wire::ObjectId owner,
                      bool is_kernel, const char* name, std::unique_ptr<FunctionInfo>* info);

// A CUfunction or CUkernel as a launch needs it.
struct Callable {
  FunctionInfo* info = nullptr;
  bool is_kernel = false;
};
CUresult resolve_callable(CUfunction handle, const Target& target, Callable* callable);

// ---- variables ---------------------------------------------------------------------------------

// Makes it known to Registry. `managed`: it is mirrored, too.
void add_variable(Variables& variables, CUdeviceptr address, size_t bytes, const Target& target,
                  bool managed);
// Before the worker is told to unload them: then their memory is no more, or another's.
void forget_variables(Variables& variables);

// ---- libraries ---------------------------------------------------------------------------------

// The library's id on a session, where it is loaded now if it was not.
CUresult id_on(Library& library, Session& session, wire::ObjectId context, wire::ObjectId* id);
// The module of a library in the target's context.
CUresult library_module(Library& library, const Target& target, CUmodule* module);
// `target` is where to look it up first.
CUresult find_kernel(Library& library, const Target& target, const char* name, Kernel** kernel);
// From every session, with its kernels and modules. The handles are gone then.
void unload(Library& library);

// ---- kernels -----------------------------------------------------------------------------------

// As the kernel is on a device, which has attributes of its own for it.
CUresult info_on(Kernel& kernel, const Target& target, FunctionInfo** info);
// An attribute was set for a device, and with it for the functions in that device's contexts.
void note_attribute(Kernel& kernel, const Target& target, int which, int value);
// The kernel's function in a context.
CUresult function_in(Kernel& kernel, const Target& target, Function** function);
// The kernel that has this id on a session; null when there is none.
Kernel* find_kernel(const Session& session, wire::ObjectId id);
// A context is about to be destroyed or reset, and its functions with it. What cuKernelSetAttribute
// has set stays.
void forget_kernels_in(const Session& session, wire::ObjectId context);

}  // namespace rcuda::client
