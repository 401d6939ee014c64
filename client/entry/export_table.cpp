// cuGetExportTable: common/interop implements it; this file provides the client's data.

#include <cstring>

#include <cuda.h>

#include "client/process/process.h"
#include "common/cuda/return_if_error.h"
#include "common/interop/export_tables.h"

namespace rcuda::client {
namespace {

class ClientProvider final : public interop::Provider {
 public:
  CUcontext current_context() override {
    return reinterpret_cast<CUcontext>(client::current_context().handle());
  }
  CUresult primary_context(CUdevice ordinal, CUcontext* context) override {
    const Device* device = Process::get().device(ordinal);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    *context = reinterpret_cast<CUcontext>(device->primary);
    return CUDA_SUCCESS;
  }
  int driver_version() override { return Process::get().driver_version(); }
  int device_count() override { return static_cast<int>(Process::get().device_count()); }
  interop::DeviceIdentity device_identity(int ordinal) override {
    interop::DeviceIdentity identity;
    const Device* device = Process::get().device(ordinal);
    if (!device) return identity;
    std::memcpy(identity.uuid.bytes, device->info.uuid, sizeof identity.uuid.bytes);
    identity.pci_domain = device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    identity.pci_bus = device->attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    identity.pci_device = device->attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    return identity;
  }
  int multiprocessors(int ordinal) override {
    const Device* device = Process::get().device(ordinal);
    return device ? device->attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) : 0;
  }
  CUresult load_module(CUmodule* module, const void* image) override {
    return cuModuleLoadData(module, image);
  }
  CUresult unload_module(CUmodule module) override { return cuModuleUnload(module); }
  CUresult module_functions(CUmodule module, std::vector<CUfunction>* functions) override {
    unsigned count = 0;
    RCUDA_RETURN_IF_CUDA_ERROR(cuModuleGetFunctionCount(&count, module));
    functions->resize(count);
    return cuModuleEnumerateFunctions(functions->data(), count, module);
  }
};

}  // namespace
}  // namespace rcuda::client

extern "C" CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  using namespace rcuda;
  static const bool provided = [] {
    interop::set_provider(new client::ClientProvider);  // never destroyed
    return true;
  }();
  (void)provided;
  return interop::get_export_table(table, id);
}
