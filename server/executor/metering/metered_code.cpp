// Overrides of a metered driver for the variables of modules and libraries. Their code is not
// counted, because it is at most as large as the image that the program has sent.
#include <cstdint>
#include <map>
#include <utility>

#include "common/base/log.h"
#include "common/image/variables.h"
#include "server/executor/metering/meters.h"

namespace rcuda::server {
namespace {

uint32_t architecture_of(const api::DriverTable& driver, CUdevice device) {
  int major = 0, minor = 0;
  driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  return static_cast<uint32_t>(major * 10 + minor);
}

// The bytes that the variables of the image take on a device of this architecture.
Result<uint64_t> held_by_variables(const image::Image& image, uint32_t architecture) {
  const Result<uint64_t> bytes = image::variable_bytes(image, architecture);
  return bytes.ok() && *bytes ? held_by(*bytes) : bytes;
}

CUresult refuse(const Status& status) {
  RCUDA_WARN(
      "a module or library is refused: its variables count against the memory limit, but their "
      "size is unknown: %s: rebuild the program, or remove its limit device_memory",
      status.message().c_str());
  return CUDA_ERROR_INVALID_IMAGE;
}

template <typename Load>
CUresult load_booked(Meters& meters, const void* code, const CUmodule* module, Load load) {
  const Result<image::Image> image = image::measure(code);
  if (!image.ok()) return refuse(image.status());
  MemoryMeter::Place place;
  const bool current = meters.memory.current(&place) == CUDA_SUCCESS;
  const Result<uint64_t> bytes =
      held_by_variables(*image, current ? architecture_of(meters.driver, place.device) : 0);
  return bytes.ok() ? make_booked(meters, meters.modules, *bytes, module, load)
                    : refuse(bytes.status());
}

Result<LibraryMeter::Sizes> library_sizes(const Meters& meters, const void* code) {
  RCUDA_ASSIGN_OR_RETURN(const image::Image image, image::measure(code));
  // The bytes by architecture. The code is read only once for each architecture, because reading
  // large code takes long.
  std::map<uint32_t, uint64_t> known;
  return meters.libraries.measure([&](CUdevice device) -> Result<uint64_t> {
    const uint32_t architecture = architecture_of(meters.driver, device);
    if (const auto found = known.find(architecture); found != known.end()) return found->second;
    const Result<uint64_t> bytes = held_by_variables(image, architecture);
    if (bytes.ok()) known[architecture] = *bytes;
    return bytes;
  });
}

}  // namespace

CUresult meters_cuModuleLoadData(Meters& meters, CUmodule* module, const void* code) {
  return load_booked(meters, code, module,
                     [&] { return meters.driver.cuModuleLoadData(module, code); });
}

CUresult meters_cuModuleLoadDataEx(Meters& meters, CUmodule* module, const void* code,
                                   unsigned count, CUjit_option* options, void** values) {
  return load_booked(meters, code, module, [&] {
    return meters.driver.cuModuleLoadDataEx(module, code, count, options, values);
  });
}

CUresult meters_cuLibraryLoadData(Meters& meters, CUlibrary* library, const void* code,
                                  CUjit_option* jit_options, void** jit_values, unsigned jit_count,
                                  CUlibraryOption* options, void** values, unsigned count) {
  Result<LibraryMeter::Sizes> sizes = library_sizes(meters, code);
  if (!sizes.ok()) return refuse(sizes.status());
  if (!meters.libraries.book(*sizes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = meters.driver.cuLibraryLoadData(library, code, jit_options, jit_values,
                                                          jit_count, options, values, count);
  if (result == CUDA_SUCCESS) {
    meters.libraries.put(*library, std::move(*sizes));
  } else {
    meters.libraries.give_back(*sizes);
  }
  return result;
}

CUresult meters_cuLibraryUnload(Meters& meters, CUlibrary library) {
  // Removed first: the driver may give the handle to a new library as soon as this one has ended.
  LibraryMeter::Sizes sizes = meters.libraries.remove(library);
  const CUresult result = meters.driver.cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) {
    meters.libraries.give(sizes);
  } else {
    meters.libraries.put(library, std::move(sizes));
  }
  return result;
}

}  // namespace rcuda::server
