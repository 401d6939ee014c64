// cuGetExportTable: softgpu's side of common/interop.
#include <cuda.h>

#include "common/interop/export_tables.h"
#include "softgpu/driver/config.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/device.h"

using namespace softgpu::driver;

namespace {

class SoftGpuProvider : public rcuda::interop::Provider {
 public:
  CUcontext current_context() override {
    Context* context = softgpu::driver::current_context();
    return context ? context->handle() : nullptr;
  }

  CUresult primary_context(CUdevice ordinal, CUcontext* context) override {
    Device* device = device_at(ordinal);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    *context = device->primary().handle();
    return CUDA_SUCCESS;
  }

  int driver_version() override { return softgpu::driver::driver_version(); }
  int device_count() override { return softgpu::driver::device_count(); }

  rcuda::interop::DeviceIdentity device_identity(int ordinal) override {
    const Device& device = *device_at(ordinal);
    return {device.uuid(), *device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
            *device.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
            *device.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)};
  }

  int multiprocessors(int ordinal) override { return device_at(ordinal)->multiprocessors(); }

  CUresult load_module(CUmodule* module, const void* image) override {
    return cuModuleLoadData(module, image);
  }
  CUresult unload_module(CUmodule module) override { return cuModuleUnload(module); }

  CUresult module_functions(CUmodule module, std::vector<CUfunction>* functions) override {
    unsigned count = 0;
    if (CUresult result = cuModuleGetFunctionCount(&count, module)) return result;
    functions->resize(count);
    if (count == 0) return CUDA_SUCCESS;
    return cuModuleEnumerateFunctions(functions->data(), count, module);
  }
};

}  // namespace

extern "C" CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
  static SoftGpuProvider* provider = [] {
    auto* made = new SoftGpuProvider;
    rcuda::interop::set_provider(made);
    return made;
  }();
  static_cast<void>(provider);
  return rcuda::interop::get_export_table(table, id);
}
