// The undocumented tables behind cuGetExportTable that NVIDIA's runtime and libraries ask for.
//
// One component for both libcuda.so.1 of this repository: softgpu answers from its own state, the
// client library from what it knows of its session. Each implements Provider and hands it over
// once, before the application can call anything. docs/interop.md says which table is needed by
// whom, and what each slot that is known does. Every other slot of a known table exists too, logs
// its table and index once and returns CUDA_ERROR_NOT_SUPPORTED. Any thread. get_export_table gives
// CUDA_ERROR_NOT_FOUND for an unknown table; built with RCUDA_INTEROP=OFF every table is unknown.
#pragma once

#include <vector>

#include <cuda.h>

namespace rcuda::interop {

struct DeviceIdentity {
  CUuuid uuid{};
  int pci_domain = 0, pci_bus = 0, pci_device = 0;
};

// What the tables need from the driver they belong to. Methods are called on application threads,
// several at once; current_context() is called on most runtime calls and must be local and fast.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual CUcontext current_context() = 0;                                    // nullptr: none
  virtual CUresult primary_context(CUdevice device, CUcontext* context) = 0;  // not retained
  virtual int driver_version() = 0;                                           // 13000
  virtual int device_count() = 0;
  virtual DeviceIdentity device_identity(int ordinal) = 0;
  virtual int multiprocessors(int ordinal) = 0;
  // As cuModuleLoadData into the current context, and cuModuleUnload.
  virtual CUresult load_module(CUmodule* module, const void* image) = 0;
  virtual CUresult unload_module(CUmodule module) = 0;
  virtual CUresult module_functions(CUmodule module, std::vector<CUfunction>* functions) = 0;
};

// The provider must live as long as the process.
void set_provider(Provider* provider);

CUresult get_export_table(const void** table, const CUuuid* id);

// A context is about to go: runs the destructors of what was stored with it, on the calling thread,
// in no particular order. To be called while the context still works.
void context_destroyed(CUcontext context);

}  // namespace rcuda::interop
