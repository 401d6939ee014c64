// Entries of a metered table for the variables of modules and libraries. Their code is not counted:
// it is no larger than what the program has sent.
#include <cstdint>

#include "common/base/log.h"
#include "common/image/variables.h"
#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

Result<uint64_t> variable_bytes(const void* code) {
  Meters& all = meters();
  MemoryMeter::Place place;
  int major = 0, minor = 0;
  if (all.memory.current(&place) == CUDA_SUCCESS) {
    all.driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                    place.device);
    all.driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                    place.device);
  }
  const Result<image::Image> measured = image::measure(code);
  if (!measured.ok()) return measured.status();
  return image::variable_bytes(*measured, static_cast<uint32_t>(major * 10 + minor));
}

template <typename Object, typename Load>
CUresult load_booked(Bookings& bookings, const void* code, const Object* object, Load load) {
  const Result<uint64_t> bytes = variable_bytes(code);
  if (!bytes.ok()) {
    RCUDA_WARN("code is refused, as the memory of its variables cannot be limited: %s",
               bytes.status().message().c_str());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  return make_booked(bookings, *bytes ? held_by(*bytes) : 0, object, load);
}

CUresult load(CUmodule* module, const void* code) {
  return load_booked(meters().modules, code, module,
                     [&] { return meters().driver.cuModuleLoadData(module, code); });
}

CUresult load_with_options(CUmodule* module, const void* code, unsigned count,
                           CUjit_option* options, void** values) {
  return load_booked(meters().modules, code, module, [&] {
    return meters().driver.cuModuleLoadDataEx(module, code, count, options, values);
  });
}

CUresult unload(CUmodule module) {
  return end_booked(meters().modules, module,
                    [&] { return meters().driver.cuModuleUnload(module); });
}

// A library belongs to no context, and counts once: on the device that is current when it is
// loaded.
CUresult load_library(CUlibrary* library, const void* code, CUjit_option* jit_options,
                      void** jit_values, unsigned jit_count, CUlibraryOption* options,
                      void** values, unsigned count) {
  Meters& all = meters();
  const CUresult result = load_booked(all.libraries, code, library, [&] {
    return all.driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options,
                                        values, count);
  });
  if (result != CUDA_SUCCESS) return result;
  if (auto booking = all.libraries.remove(number_of(*library))) {
    booking->place.context = nullptr;
    all.libraries.put(number_of(*library), *booking);
  }
  return CUDA_SUCCESS;
}

CUresult unload_library(CUlibrary library) {
  return end_booked(meters().libraries, library,
                    [&] { return meters().driver.cuLibraryUnload(library); });
}

}  // namespace

void meter_modules(api::DriverTable* table) {
  replace_entry(table->cuModuleLoadData, &load);
  replace_entry(table->cuModuleLoadDataEx, &load_with_options);
  replace_entry(table->cuModuleUnload, &unload);
  replace_entry(table->cuLibraryLoadData, &load_library);
  replace_entry(table->cuLibraryUnload, &unload_library);
}

}  // namespace rcuda::server
