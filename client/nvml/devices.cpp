// The queries of devices: handles, names, addresses, and the plain numbers (figures) that
// common/nvml/figures.h lists, such as clocks and temperatures.
#include <cstdio>
#include <cstring>

#include "client/nvml/handles.h"
#include "client/pool/pci_address.h"
#include "common/nvml/figures.h"
#include "common/nvml/nvml_functions.h"

namespace rcuda::client::nvml {
namespace {

namespace figures = rcuda::nvml;

template <typename Matches>
nvmlReturn_t find(const Matches& matches, nvmlDevice_t* handle) {
  if (const nvmlReturn_t result = check_initialized(); result != NVML_SUCCESS) return result;
  if (!handle) return NVML_ERROR_INVALID_ARGUMENT;
  uint32_t count = 0;
  nvmlReturn_t result = Pool::get().count(&count);
  if (result != NVML_SUCCESS) return result;
  result = NVML_ERROR_NOT_FOUND;
  for (uint32_t i = 0; i < count; ++i) {
    View view;
    const nvmlReturn_t looked = Pool::get().look(i, &view);
    if (looked == NVML_SUCCESS && matches(view)) return handle_of(i, handle);
    if (looked != NVML_SUCCESS) result = looked;  // this may be the wanted device
  }
  return result;
}

nvmlReturn_t by_index(unsigned index, nvmlDevice_t* handle) {
  const nvmlReturn_t result = check_initialized();
  return result == NVML_SUCCESS ? handle_of(index, handle) : result;
}

nvmlReturn_t by_pci_bus_id(const char* text, nvmlDevice_t* handle) {
  if (const nvmlReturn_t result = check_initialized(); result != NVML_SUCCESS) return result;
  if (!text) return NVML_ERROR_INVALID_ARGUMENT;
  const auto wanted = parse_pci_address(text);
  if (!wanted) return NVML_ERROR_NOT_FOUND;
  return find([&](const View& view) { return parse_pci_address(view.pci_bus_id) == wanted; },
              handle);
}

PciAddress address_of(const View& view) {
  return parse_pci_address(view.pci_bus_id).value_or(PciAddress{});
}

// Writes the PCI data of a device. `with_bus_id`: also writes busId, which older versions of the
// struct lack.
nvmlReturn_t get_pci(nvmlDevice_t handle, nvmlPciInfo_t* pci, bool with_bus_id) {
  View view;
  if (const nvmlReturn_t result = look(handle, &view); result != NVML_SUCCESS) return result;
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  const PciAddress address = address_of(view);
  std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", address.domain,
                address.bus, address.slot);
  pci->domain = address.domain;
  pci->bus = address.bus;
  pci->device = address.slot;
  pci->pciDeviceId = view.gpu().pci_device;
  pci->pciSubSystemId = view.gpu().pci_subsystem;
  if (with_bus_id) {
    std::snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", address.domain, address.bus,
                  address.slot);
  }
  return NVML_SUCCESS;
}

// Returns an empty list if the server's list of figures differs from this library's.
const std::vector<uint64_t>& figures_of(const View& view) {
  static const auto& none = *new std::vector<uint64_t>;
  return view.report->layout == figures::layout() ? view.gpu().figures : none;
}

const std::string& text_of(const View& view, uint32_t which) {
  static const auto& none = *new std::string;
  const std::vector<std::string>& all = view.gpu().texts;
  return view.report->layout == figures::layout() && which < all.size() ? all[which] : none;
}

// Reads `count` figures of the report, from `first` on.
template <typename T>
nvmlReturn_t get(nvmlDevice_t handle, uint32_t first, uint32_t count, T* values) {
  View view;
  if (const nvmlReturn_t result = look(handle, &view); result != NVML_SUCCESS) return result;
  if (!values) return NVML_ERROR_INVALID_ARGUMENT;
  const std::vector<uint64_t>& all = figures_of(view);
  for (uint32_t i = 0; i < count; ++i) {
    if (first + i >= all.size() || all[first + i] == wire::kUnknownFigure) {
      return NVML_ERROR_NOT_SUPPORTED;
    }
    values[i] = static_cast<T>(all[first + i]);
  }
  return NVML_SUCCESS;
}

template <typename T>
nvmlReturn_t get_pair(nvmlDevice_t handle, uint32_t first, T* one, T* other) {
  T values[2]{};
  const nvmlReturn_t result = get(handle, first, 2, values);
  if (result != NVML_SUCCESS) return result;
  if (!one || !other) return NVML_ERROR_INVALID_ARGUMENT;
  *one = values[0];
  *other = values[1];
  return NVML_SUCCESS;
}

void read_field(const View& view, nvmlFieldValue_t* value) {
  value->timestamp = value->latencyUsec = 0;
  value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  const std::vector<uint64_t>& all = figures_of(view);
  if (all.size() < figures::kFigures) return;
  const auto tell = [&](uint64_t type, uint64_t what) {
    value->valueType = static_cast<unsigned>(type);
    value->value = what;
    value->nvmlReturn = NVML_SUCCESS;
  };
  const auto tell_field = [&](uint32_t place) {
    if (value->scopeId == 0 && all[place] != wire::kUnknownFigure) tell(all[place], all[place + 1]);
  };
  // Reports the figure of the NVLink that scopeId names.
  const auto tell_of_link = [&](uint32_t first) {
    if (value->scopeId >= kNvmlNvLinks) return;
    const uint64_t what = all[first + value->scopeId];
    if (what != wire::kUnknownFigure) tell(NVML_VALUE_TYPE_UNSIGNED_INT, what);
  };
  switch (value->fieldId) {
    case kNvmlNvLinkStateField:
      return tell_of_link(figures::figure_nvmlDeviceGetNvLinkState);
    case kNvmlNvLinkVersionField:
      return tell_of_link(figures::figure_nvmlDeviceGetNvLinkVersion);
#define CASE(number) \
  case number:       \
    return tell_field(figures::field_##number);
      RCUDA_NVML_FIELDS(CASE)
#undef CASE
    default:
      return;
  }
}

nvmlReturn_t get_text(nvmlDevice_t handle, uint32_t which, char* text, unsigned length) {
  View view;
  if (const nvmlReturn_t result = look(handle, &view); result != NVML_SUCCESS) return result;
  return put(text_of(view, which), text, length);
}

}  // namespace
}  // namespace rcuda::client::nvml

using namespace rcuda::client::nvml;

extern "C" {

#define DEFINE_VALUES(name, type, count)                       \
  nvmlReturn_t name(nvmlDevice_t device, type* values) {       \
    return get(device, figures::figure_##name, count, values); \
  }
RCUDA_NVML_VALUES(DEFINE_VALUES)

#define DEFINE_CHOICE(name, count)                                          \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned* value) { \
    if (which >= (count)) return NVML_ERROR_INVALID_ARGUMENT;               \
    return get(device, figures::figure_##name + which, 1, value);           \
  }
RCUDA_NVML_CHOICES(DEFINE_CHOICE)

#define DEFINE_PAIR(name, type)                                       \
  nvmlReturn_t name(nvmlDevice_t device, type* first, type* second) { \
    return get_pair(device, figures::figure_##name, first, second);   \
  }
RCUDA_NVML_PAIRS(DEFINE_PAIR)

#define DEFINE_GRID(name, type, count, others)                                          \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned other, type* value) { \
    if (which >= (count) || other >= (others)) return NVML_ERROR_INVALID_ARGUMENT;      \
    return get(device, figures::figure_##name + which * (others) + other, 1, value);    \
  }
RCUDA_NVML_GRIDS(DEFINE_GRID)

#define DEFINE_TEXT(name)                                               \
  nvmlReturn_t name(nvmlDevice_t device, char* text, unsigned length) { \
    return get_text(device, figures::text_##name, text, length);        \
  }
RCUDA_NVML_TEXTS(DEFINE_TEXT)

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* device) {
  return by_index(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  return by_index(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* address, nvmlDevice_t* device) {
  return by_pci_bus_id(address, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* address, nvmlDevice_t* device) {
  return by_pci_bus_id(address, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  return find([uuid](const View& view) { return view.gpu().uuid == uuid; }, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  if (!serial) return NVML_ERROR_INVALID_ARGUMENT;
  return find(
      [serial](const View& view) {
        return text_of(view, figures::text_nvmlDeviceGetSerial) == serial;
      },
      device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned* index) {
  uint32_t found = 0;
  const nvmlReturn_t result = index_of(device, &found);
  if (result != NVML_SUCCESS) return result;
  if (!index) return NVML_ERROR_INVALID_ARGUMENT;
  *index = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned length) {
  View view;
  const nvmlReturn_t result = look(device, &view);
  return result == NVML_SUCCESS ? put(view.gpu().name, name, length) : result;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned length) {
  View view;
  const nvmlReturn_t result = look(device, &view);
  return result == NVML_SUCCESS ? put(view.gpu().uuid, uuid, length) : result;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return get_pci(device, pci, false);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return get_pci(device, pci, false);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return get_pci(device, pci, true);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t* pci) {
  constexpr unsigned kDisplay = 3, k3d = 2;  // PCI's class and subclass of a GPU without a display
  nvmlPciInfo_t known{};
  const nvmlReturn_t result = get_pci(device, &known, true);
  if (result != NVML_SUCCESS) return result;
  if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
  if (pci->version != nvml_version(sizeof *pci, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  *pci = {
      pci->version, known.domain, known.bus, known.device, known.pciDeviceId, known.pciSubSystemId,
      kDisplay,     k3d,          {}};
  std::memcpy(pci->busId, known.busId, sizeof pci->busId);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t* temperature) {
  unsigned value = 0;
  if (!temperature) return NVML_ERROR_INVALID_ARGUMENT;
  if (temperature->version != nvml_version(sizeof *temperature, 1)) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  const nvmlReturn_t result = nvmlDeviceGetTemperature(device, temperature->sensorType, &value);
  if (result == NVML_SUCCESS) temperature->temperature = static_cast<int>(value);
  return result;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned* is) {
  uint32_t index = 0;
  const nvmlReturn_t result = index_of(device, &index);
  if (result != NVML_SUCCESS) return result;
  if (!is) return NVML_ERROR_INVALID_ARGUMENT;
  *is = 0;
  return NVML_SUCCESS;
}

// Each value has its own result, in nvmlReturn.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  View view;
  const nvmlReturn_t result = look(device, &view);
  if (result != NVML_SUCCESS) return result;
  if (count < 0 || (count > 0 && !values)) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) read_field(view, &values[i]);
  return NVML_SUCCESS;
}

}  // extern "C"
