// The undocumented tables that NVIDIA's runtime and libraries request with cuGetExportTable.
//
// Two libraries of this repository replace libcuda.so.1 and use this component: softgpu answers
// from its own state, the client library from its session. Each implements Provider and sets it in
// the first cuGetExportTable. docs/interop.md lists the programs that need each table, and the
// purpose of each known slot. Every other slot of a known table logs its table and index once and
// returns CUDA_ERROR_NOT_SUPPORTED. Any thread. get_export_table returns CUDA_ERROR_NOT_FOUND for
// an unknown table; with RCUDA_INTEROP=OFF every table is unknown.
#pragma once

#include <vector>

#include <cuda.h>

#include "common/base/mutex.h"

namespace rcuda::interop {

struct DeviceIdentity {
  CUuuid uuid{};
  int pci_domain = 0, pci_bus = 0, pci_device = 0;
};

// The functions that the tables need from their driver. Application threads call the methods,
// several at once. Most runtime calls call current_context(), so current_context() must be local
// and fast.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual CUcontext current_context() = 0;                                    // nullptr: none
  virtual CUresult primary_context(CUdevice device, CUcontext* context) = 0;  // not retained
  virtual int driver_version() = 0;                                           // 13000
  virtual int device_count() = 0;
  virtual DeviceIdentity device_identity(int ordinal) = 0;
  virtual int multiprocessors(int ordinal) = 0;
  // Work as cuModuleLoadData into the current context, and as cuModuleUnload.
  virtual CUresult load_module(CUmodule* module, const void* image) = 0;
  virtual CUresult unload_module(CUmodule module) = 0;
  virtual CUresult module_functions(CUmodule module, std::vector<CUfunction>* functions) = 0;
};

// Call it before get_export_table(). The provider must live as long as the process.
void set_provider(Provider* provider);

CUresult get_export_table(const void** table, const CUuuid* id);

// Runs the destructors of the values stored with a context, on the calling thread, in no particular
// order. Call it before the context is destroyed, and without a lock that the driver's functions
// take. NVIDIA's runtime takes its own lock in a destructor, and holds this lock during some calls
// of the driver.
void context_destroyed(CUcontext context);
// For a caller that holds `lock`, which the driver's functions take: unlocks `lock` while the
// destructors run. Returns when the context has no values, including values that other threads
// have stored in the meantime.
void context_destroyed(CUcontext context, MutexLock& lock) RCUDA_REQUIRES(lock);

}  // namespace rcuda::interop
