// The functions of NVML that return plain figures of one device: the only list of them. The
// server's monitor calls each of them and puts the values into a report
// (common/messages/gpu_report.h); client/nvml answers each of them from the report.
//
// Plain declarations; nothing blocks.
#pragma once

#include <cstdint>

#include "common/base/fnv1a.h"
#include "common/nvml/nvml_api.h"

// X(name, type, count): nvmlReturn_t name(nvmlDevice_t, type* values), with `count` values of the
// type, one after the other.
#define RCUDA_NVML_VALUES(X)                                            \
  X(nvmlDeviceGetUtilizationRates, unsigned, 2)                         \
  X(nvmlDeviceGetPowerUsage, unsigned, 1)                               \
  X(nvmlDeviceGetEnforcedPowerLimit, unsigned, 1)                       \
  X(nvmlDeviceGetPowerManagementLimit, unsigned, 1)                     \
  X(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 1)              \
  X(nvmlDeviceGetPowerManagementMode, unsigned, 1)                      \
  X(nvmlDeviceGetPowerState, unsigned, 1)                               \
  X(nvmlDeviceGetPowerSource, unsigned, 1)                              \
  X(nvmlDeviceGetPerformanceState, unsigned, 1)                         \
  X(nvmlDeviceGetFanSpeed, unsigned, 1)                                 \
  X(nvmlDeviceGetNumFans, unsigned, 1)                                  \
  X(nvmlDeviceGetBrand, unsigned, 1)                                    \
  X(nvmlDeviceGetArchitecture, unsigned, 1)                             \
  X(nvmlDeviceGetComputeMode, unsigned, 1)                              \
  X(nvmlDeviceGetPersistenceMode, unsigned, 1)                          \
  X(nvmlDeviceGetDisplayMode, unsigned, 1)                              \
  X(nvmlDeviceGetDisplayActive, unsigned, 1)                            \
  X(nvmlDeviceGetDefaultEccMode, unsigned, 1)                           \
  X(nvmlDeviceGetMinorNumber, unsigned, 1)                              \
  X(nvmlDeviceGetBoardId, unsigned, 1)                                  \
  X(nvmlDeviceGetModuleId, unsigned, 1)                                 \
  X(nvmlDeviceGetMultiGpuBoard, unsigned, 1)                            \
  X(nvmlDeviceGetBusType, unsigned, 1)                                  \
  X(nvmlDeviceGetMemoryBusWidth, unsigned, 1)                           \
  X(nvmlDeviceGetNumGpuCores, unsigned, 1)                              \
  X(nvmlDeviceGetIrqNum, unsigned, 1)                                   \
  X(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 1)                   \
  X(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 1)                        \
  X(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 1)                    \
  X(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 1)                         \
  X(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 1)                 \
  X(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, 1)                         \
  X(nvmlDeviceGetPcieSpeed, unsigned, 1)                                \
  X(nvmlDeviceGetPcieReplayCounter, unsigned, 1)                        \
  X(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned, 1)                  \
  X(nvmlDeviceGetAccountingMode, unsigned, 1)                           \
  X(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, 1)                \
  X(nvmlDeviceGetVirtualizationMode, unsigned, 1)                       \
  X(nvmlDeviceGetMaxMigDeviceCount, unsigned, 1)                        \
  X(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 1)         \
  X(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1)      \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1)   \
  X(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 1)    \
  X(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 1) \
  X(nvmlDeviceGetBAR1MemoryInfo, unsigned long long, 3)

// X(name, count): nvmlReturn_t name(nvmlDevice_t, unsigned which, unsigned* value), with `which`
// below `count`.
#define RCUDA_NVML_CHOICES(X)                 \
  X(nvmlDeviceGetTemperature, 1)              \
  X(nvmlDeviceGetTemperatureThreshold, 8)     \
  X(nvmlDeviceGetClockInfo, 4)                \
  X(nvmlDeviceGetMaxClockInfo, 4)             \
  X(nvmlDeviceGetApplicationsClock, 4)        \
  X(nvmlDeviceGetDefaultApplicationsClock, 4) \
  X(nvmlDeviceGetMaxCustomerBoostClock, 4)    \
  X(nvmlDeviceGetNvLinkState, kNvmlNvLinks)   \
  X(nvmlDeviceGetNvLinkVersion, kNvmlNvLinks) \
  X(nvmlDeviceGetNvLinkRemoteDeviceType, kNvmlNvLinks)

// X(name, type): nvmlReturn_t name(nvmlDevice_t, type* first, type* second).
#define RCUDA_NVML_PAIRS(X)                                 \
  X(nvmlDeviceGetCudaComputeCapability, int)                \
  X(nvmlDeviceGetEccMode, unsigned)                         \
  X(nvmlDeviceGetMigMode, unsigned)                         \
  X(nvmlDeviceGetGpuOperationMode, unsigned)                \
  X(nvmlDeviceGetGspFirmwareMode, unsigned)                 \
  X(nvmlDeviceGetAutoBoostedClocksEnabled, unsigned)        \
  X(nvmlDeviceGetPowerManagementLimitConstraints, unsigned) \
  X(nvmlDeviceGetEncoderUtilization, unsigned)              \
  X(nvmlDeviceGetDecoderUtilization, unsigned)              \
  X(nvmlDeviceGetJpgUtilization, unsigned)                  \
  X(nvmlDeviceGetOfaUtilization, unsigned)

// X(name, type, count, others): nvmlReturn_t name(nvmlDevice_t, unsigned which, unsigned other,
// type* value), with `which` below `count` and `other` below `others`.
#define RCUDA_NVML_GRIDS(X)                                   \
  X(nvmlDeviceGetTotalEccErrors, unsigned long long, 2, 2)    \
  X(nvmlDeviceGetNvLinkCapability, unsigned, kNvmlNvLinks, 6) \
  X(nvmlDeviceGetClock, unsigned, 4, 4)

// X(number): a field of nvmlDeviceGetFieldValues() that has no scope. The lines are: ECC's modes
// and errors; times of throttling; temperature of the memory, total energy, number of NVLinks, PCIe
// replays; power, energy and the limits of temperature; the recommended recovery action.
// clang-format off
#define RCUDA_NVML_FIELDS(X) \
  X(1) X(2) X(3) X(4) \
  X(74) X(75) X(76) X(77) X(78) X(79) X(80) X(81) X(251) X(252) X(253) \
  X(82) X(83) X(91) X(94) \
  X(185) X(186) X(191) X(193) X(194) X(195) X(196) \
  X(230)
// clang-format on

// X(name): nvmlReturn_t name(nvmlDevice_t, char* text, unsigned length).
#define RCUDA_NVML_TEXTS(X)       \
  X(nvmlDeviceGetSerial)          \
  X(nvmlDeviceGetVbiosVersion)    \
  X(nvmlDeviceGetBoardPartNumber) \
  X(nvmlDeviceGetInforomImageVersion)

extern "C" {
#define DECLARE_VALUES(name, type, count) nvmlReturn_t name(nvmlDevice_t device, type* values);
#define DECLARE_CHOICE(name, count) \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned* value);
#define DECLARE_PAIR(name, type) nvmlReturn_t name(nvmlDevice_t device, type* first, type* second);
#define DECLARE_GRID(name, type, count, others) \
  nvmlReturn_t name(nvmlDevice_t device, unsigned which, unsigned other, type* value);
#define DECLARE_TEXT(name) nvmlReturn_t name(nvmlDevice_t device, char* text, unsigned length);
RCUDA_NVML_VALUES(DECLARE_VALUES)
RCUDA_NVML_CHOICES(DECLARE_CHOICE)
RCUDA_NVML_PAIRS(DECLARE_PAIR)
RCUDA_NVML_GRIDS(DECLARE_GRID)
RCUDA_NVML_TEXTS(DECLARE_TEXT)
#undef DECLARE_VALUES
#undef DECLARE_CHOICE
#undef DECLARE_PAIR
#undef DECLARE_GRID
#undef DECLARE_TEXT
}

namespace rcuda::nvml {

// The index of a function's first value in a report: figure_NAME.
enum Figure : uint32_t {
#define PLACE_VALUES(name, type, count) figure_##name, last_of_##name = figure_##name + (count)-1,
#define PLACE_CHOICE(name, count) figure_##name, last_of_##name = figure_##name + (count)-1,
#define PLACE_PAIR(name, type) figure_##name, last_of_##name = figure_##name + 1,
#define PLACE_GRID(name, type, count, others) \
  figure_##name, last_of_##name = figure_##name + (count) * (others)-1,
// A field has two figures: its type (nvmlValueType_t) and its value.
#define PLACE_FIELD(number) field_##number, last_of_##number = field_##number + 1,
  RCUDA_NVML_VALUES(PLACE_VALUES) RCUDA_NVML_CHOICES(PLACE_CHOICE) RCUDA_NVML_PAIRS(PLACE_PAIR)
      RCUDA_NVML_GRIDS(PLACE_GRID) RCUDA_NVML_FIELDS(PLACE_FIELD)
#undef PLACE_VALUES
#undef PLACE_CHOICE
#undef PLACE_PAIR
#undef PLACE_GRID
#undef PLACE_FIELD
          kFigures
};

enum Text : uint32_t {
#define PLACE_TEXT(name) text_##name,
  RCUDA_NVML_TEXTS(PLACE_TEXT)
#undef PLACE_TEXT
      kTexts
};

// A hash of the lists: sides with different lists do not understand each other's figures.
constexpr uint64_t layout() {
  uint64_t hash = fnv1a("");
  for (const char* text : {
#define NAME(name, ...) #name " " #__VA_ARGS__ ",",
           RCUDA_NVML_VALUES(NAME) RCUDA_NVML_CHOICES(NAME) RCUDA_NVML_PAIRS(NAME)
               RCUDA_NVML_GRIDS(NAME) RCUDA_NVML_FIELDS(NAME) RCUDA_NVML_TEXTS(NAME)
#undef NAME
       }) {
    hash = fnv1a(text, hash);
  }
  return hash;
}

}  // namespace rcuda::nvml
