#include "server/monitor/nvml_reader.h"

#include <iterator>
#include <utility>

#include <dlfcn.h>

#include "common/nvml/figures.h"

namespace rcuda::server {
namespace {

using Gpu = wire::GpuReport::Gpu;

constexpr size_t kMaxText = 96;  // NVML's own texts have at most 80 characters
constexpr unsigned kMaxProcesses = 4096;

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
}

// Never closes the library: NVML's threads, if it has any, may still run.
void* open_library(const std::string& driver_path) {
  const std::string beside =
      driver_path.substr(0, driver_path.rfind('/') + 1) + "libnvidia-ml.so.1";
  if (beside.front() == '/') {
    if (void* library = ::dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

struct NvmlReader::Functions {
  void* library = nullptr;
  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*shutdown)() = nullptr;
  nvmlReturn_t (*driver_version)(char*, unsigned) = nullptr;
  nvmlReturn_t (*by_pci_bus_id)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*by_uuid)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  nvmlReturn_t (*memory_v2)(nvmlDevice_t, nvmlMemory_v2_t*) = nullptr;
  nvmlReturn_t (*pci)(nvmlDevice_t, nvmlPciInfo_t*) = nullptr;
  nvmlReturn_t (*processes)(nvmlDevice_t, unsigned*, nvmlProcessInfo_v2_t*) = nullptr;
  nvmlReturn_t (*ancestor)(nvmlDevice_t, nvmlDevice_t, unsigned*) = nullptr;
  nvmlReturn_t (*fields)(nvmlDevice_t, int, nvmlFieldValue_t*) = nullptr;
  nvmlReturn_t (*p2p)(nvmlDevice_t, nvmlDevice_t, unsigned, unsigned*) = nullptr;
#define POINTER(name, ...) decltype(&::name) name = nullptr;
  RCUDA_NVML_VALUES(POINTER)
  RCUDA_NVML_CHOICES(POINTER)
  RCUDA_NVML_PAIRS(POINTER)
  RCUDA_NVML_GRIDS(POINTER)
  RCUDA_NVML_TEXTS(POINTER)
#undef POINTER

  explicit Functions(void* opened) : library(opened) {
    find(library, "nvmlInit_v2", &init);
    find(library, "nvmlShutdown", &shutdown);
    find(library, "nvmlSystemGetDriverVersion", &driver_version);
    find(library, "nvmlDeviceGetHandleByPciBusId_v2", &by_pci_bus_id);
    find(library, "nvmlDeviceGetHandleByUUID", &by_uuid);
    find(library, "nvmlDeviceGetMemoryInfo", &memory);
    find(library, "nvmlDeviceGetMemoryInfo_v2", &memory_v2);
    find(library, "nvmlDeviceGetPciInfo_v3", &pci);
    find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &processes);
    find(library, "nvmlDeviceGetTopologyCommonAncestor", &ancestor);
    find(library, "nvmlDeviceGetP2PStatus", &p2p);
    find(library, "nvmlDeviceGetFieldValues", &fields);
#define FIND(name, ...) find(library, #name, &name);
    RCUDA_NVML_VALUES(FIND)
    RCUDA_NVML_CHOICES(FIND)
    RCUDA_NVML_PAIRS(FIND)
    RCUDA_NVML_GRIDS(FIND)
    RCUDA_NVML_TEXTS(FIND)
#undef FIND
  }

  void read_figures(nvmlDevice_t device, std::vector<uint64_t>* figures) const;
  void read_fields(nvmlDevice_t device, std::vector<uint64_t>* figures) const;
  void read_texts(nvmlDevice_t device, std::vector<std::string>* texts) const;
  void read_memory(nvmlDevice_t device, Gpu* gpu) const;
  std::map<uint32_t, uint64_t> read_processes(nvmlDevice_t device) const;
  wire::GpuReport::Path read_path(nvmlDevice_t from, nvmlDevice_t to) const;
};

void NvmlReader::Functions::read_figures(nvmlDevice_t device,
                                         std::vector<uint64_t>* figures) const {
  figures->assign(nvml::kFigures, wire::kUnknownFigure);
  auto& all = *figures;
#define READ_VALUES(name, type, count)                                               \
  if (type values[count]{}; name && name(device, values) == NVML_SUCCESS) {          \
    for (unsigned i = 0; i < (count); ++i) all[nvml::figure_##name + i] = values[i]; \
  }
  RCUDA_NVML_VALUES(READ_VALUES)
#undef READ_VALUES
#define READ_CHOICES(name, count)                                                      \
  for (unsigned i = 0; name && i < (count); ++i) {                                     \
    unsigned value = 0;                                                                \
    if (name(device, i, &value) == NVML_SUCCESS) all[nvml::figure_##name + i] = value; \
  }
  RCUDA_NVML_CHOICES(READ_CHOICES)
#undef READ_CHOICES
#define READ_PAIR(name, type)                                                          \
  if (type first{}, second{}; name && name(device, &first, &second) == NVML_SUCCESS) { \
    all[nvml::figure_##name] = static_cast<uint64_t>(first);                           \
    all[nvml::figure_##name + 1] = static_cast<uint64_t>(second);                      \
  }
  RCUDA_NVML_PAIRS(READ_PAIR)
#undef READ_PAIR
#define READ_GRID(name, type, count, others)                                      \
  for (unsigned i = 0; name && i < (count) * (others); ++i) {                     \
    type value{};                                                                 \
    const nvmlReturn_t result = name(device, i / (others), i % (others), &value); \
    if (result == NVML_SUCCESS) all[nvml::figure_##name + i] = value;             \
  }
  RCUDA_NVML_GRIDS(READ_GRID)
#undef READ_GRID
}

void NvmlReader::Functions::read_fields(nvmlDevice_t device, std::vector<uint64_t>* figures) const {
#define NUMBER(number) nvmlFieldValue_t{number, 0, 0, 0, 0, NVML_ERROR_NOT_SUPPORTED, 0},
  nvmlFieldValue_t values[] = {RCUDA_NVML_FIELDS(NUMBER)};
#undef NUMBER
  const auto count = static_cast<int>(std::size(values));
  if (!fields || fields(device, count, values) != NVML_SUCCESS) return;
  const nvmlFieldValue_t* value = values;
#define READ_FIELD(number)                               \
  if (value->nvmlReturn == NVML_SUCCESS) {               \
    (*figures)[nvml::field_##number] = value->valueType; \
    (*figures)[nvml::field_##number + 1] = value->value; \
  }                                                      \
  ++value;
  RCUDA_NVML_FIELDS(READ_FIELD)
#undef READ_FIELD
}

void NvmlReader::Functions::read_texts(nvmlDevice_t device, std::vector<std::string>* texts) const {
  texts->assign(nvml::kTexts, "");
#define READ_TEXT(name)                                                              \
  if (char text[kMaxText]{}; name && name(device, text, kMaxText) == NVML_SUCCESS) { \
    text[kMaxText - 1] = '\0';                                                       \
    (*texts)[nvml::text_##name] = text;                                              \
  }
  RCUDA_NVML_TEXTS(READ_TEXT)
#undef READ_TEXT
}

void NvmlReader::Functions::read_memory(nvmlDevice_t device, Gpu* gpu) const {
  nvmlMemory_v2_t apart{};
  apart.version = nvml_version(sizeof apart, 2);
  nvmlMemory_t together{};
  if (memory_v2 && memory_v2(device, &apart) == NVML_SUCCESS) {
    gpu->total_bytes = apart.total;
    gpu->used_bytes = apart.used;
    gpu->reserved_bytes = apart.reserved;
  } else if (memory && memory(device, &together) == NVML_SUCCESS) {
    gpu->total_bytes = together.total;
    gpu->used_bytes = together.used;
  }
}

std::map<uint32_t, uint64_t> NvmlReader::Functions::read_processes(nvmlDevice_t device) const {
  std::map<uint32_t, uint64_t> memory_of;
  unsigned count = 64;
  std::vector<nvmlProcessInfo_v2_t> list(count);
  nvmlReturn_t result = NVML_ERROR_NOT_SUPPORTED;
  while (processes &&
         (result = processes(device, &count, list.data())) == NVML_ERROR_INSUFFICIENT_SIZE) {
    if (list.size() >= kMaxProcesses) return memory_of;
    list.resize(list.size() * 2);
    count = static_cast<unsigned>(list.size());
  }
  if (result != NVML_SUCCESS || count > list.size()) return memory_of;
  for (unsigned i = 0; i < count; ++i) memory_of[list[i].pid] = list[i].usedGpuMemory;
  return memory_of;
}

wire::GpuReport::Path NvmlReader::Functions::read_path(nvmlDevice_t from, nvmlDevice_t to) const {
  wire::GpuReport::Path path;
  path.ancestor = from == to ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
  path.p2p_status.assign(kNvmlP2PCaps, from == to ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_UNKNOWN);
  if (from == to) return path;
  unsigned value = 0;
  if (ancestor && ancestor(from, to, &value) == NVML_SUCCESS) path.ancestor = value;
  for (unsigned caps = 0; p2p && caps < kNvmlP2PCaps; ++caps) {
    if (p2p(from, to, caps, &value) == NVML_SUCCESS) path.p2p_status[caps] = value;
  }
  return path;
}

NvmlReader::NvmlReader() = default;

NvmlReader::~NvmlReader() {
  if (nvml_ && nvml_->shutdown) nvml_->shutdown();
}

Result<std::unique_ptr<NvmlReader>> NvmlReader::open(const std::string& driver_path) {
  void* library = open_library(driver_path);
  if (!library) {
    return Status(
        Code::kNotFound,
        "there is no libnvidia-ml.so.1: install the driver's NVML, or start the container "
        "with NVIDIA_DRIVER_CAPABILITIES=compute,utility");
  }
  if (::dlsym(library, "nvml_of_rcuda")) {
    return Status(Code::kInvalidArgument,
                  "the libnvidia-ml.so.1 that is found is rcuda's own, for clients: take its "
                  "folder out of LD_LIBRARY_PATH for the server");
  }
  std::unique_ptr<NvmlReader> reader(new NvmlReader);
  auto functions = std::make_unique<Functions>(library);
  if (!functions->init || !functions->by_pci_bus_id) {
    return Status(Code::kUnsupported,
                  "libnvidia-ml.so.1 lacks functions that rcuda needs: install a current "
                  "NVIDIA driver");
  }
  if (const nvmlReturn_t result = functions->init(); result != NVML_SUCCESS) {
    return Status(Code::kUnavailable, "nvmlInit of libnvidia-ml.so.1 fails (error " +
                                          std::to_string(result) +
                                          "): nvidia-smi shows whether the driver works");
  }
  reader->nvml_ = std::move(functions);
  return reader;
}

GpuSample NvmlReader::read(const std::vector<GpuName>& names) const {
  GpuSample sample;
  char version[kMaxText]{};
  if (nvml_->driver_version && nvml_->driver_version(version, kMaxText) == NVML_SUCCESS) {
    version[kMaxText - 1] = '\0';
    sample.driver_version = version;
  }
  sample.gpus.resize(names.size());
  std::vector<nvmlDevice_t> devices(names.size());  // the whole GPU, also for a MIG device
  for (size_t i = 0; i < devices.size(); ++i) {
    GpuSample::Gpu& gpu = sample.gpus[i];
    gpu.known = nvml_->by_pci_bus_id(names[i].pci_bus_id.c_str(), &devices[i]) == NVML_SUCCESS;
    nvmlDevice_t own = devices[i];
    if (gpu.known && names[i].uuid.starts_with("MIG-")) {
      gpu.known = nvml_->by_uuid && nvml_->by_uuid(names[i].uuid.c_str(), &own) == NVML_SUCCESS;
    }
    if (!gpu.known) continue;
    nvml_->read_figures(own, &gpu.told.figures);
    nvml_->read_fields(own, &gpu.told.figures);
    nvml_->read_texts(own, &gpu.told.texts);
    nvml_->read_memory(own, &gpu.told);
    gpu.memory_of = nvml_->read_processes(own);
    if (nvmlPciInfo_t pci{}; nvml_->pci && nvml_->pci(devices[i], &pci) == NVML_SUCCESS) {
      gpu.told.pci_device = pci.pciDeviceId;
      gpu.told.pci_subsystem = pci.pciSubSystemId;
    }
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!sample.gpus[i].known) continue;
    for (size_t j = 0; j < devices.size(); ++j) {
      wire::GpuReport::Path path;
      path.ancestor = NVML_TOPOLOGY_SYSTEM;
      if (sample.gpus[j].known) path = nvml_->read_path(devices[i], devices[j]);
      sample.gpus[i].told.paths.push_back(std::move(path));
    }
  }
  return sample;
}

}  // namespace rcuda::server
