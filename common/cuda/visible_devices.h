// CUDA_VISIBLE_DEVICES, as the driver reads it: a list of numbers, or of UUIDs or their beginnings.
//
// The first entry decides whether the list has numbers or UUIDs. The list ends before the first
// invalid entry: a negative or too large number, a text that is neither a number nor a device's
// UUID, the beginning of several UUIDs, or an entry of the other form. A device that is named twice
// makes the whole list invalid.
//
// The driver reads a number with strtol() and converts it to int: white space and a sign may
// precede the digits, text after the digits is ignored, and 4294967296 is 0. In a UUID, only the
// hexadecimal digits and dashes count, in either case. The prefix ("GPU-" or "MIG-") and text after
// a complete UUID are ignored. (Observed with driver 580 on an H100;
// tests/programs/driver_variables.cpp)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/lower.h"

namespace rcuda::cuda {

struct VisibleDevices {
  std::vector<size_t> positions;  // in the order of the list
  std::string problem;            // why the list ended early; empty if it did not
  bool named_twice = false;       // cuInit returns CUDA_ERROR_INVALID_DEVICE
};

// Whether the list has UUIDs, so that select_devices() needs the devices' UUIDs.
inline bool lists_uuids(std::string_view list) {
  return list.starts_with("GPU-") || list.starts_with("MIG-");
}

namespace internal {

inline constexpr size_t kNone = ~size_t{0};

// Returns the position that the entry names, or kNone and the problem.
inline size_t find_number(const std::string& entry, size_t count, std::string* problem) {
  char* end = nullptr;
  const int number = static_cast<int>(std::strtol(entry.c_str(), &end, 10));
  if (end == entry.c_str()) {
    *problem = "\"" + entry + "\" is neither a number nor a UUID";
  } else if (number < 0 || static_cast<size_t>(number) >= count) {
    *problem = "there is no device " + std::to_string(number) + " among the " +
               std::to_string(count) + " devices";
  } else {
    return static_cast<size_t>(number);
  }
  return kNone;
}

// `uuids`: as uuid_text() writes them. A malformed text in `uuids` stands for a device whose server
// does not answer or sends wrong values; no entry can name this device.
inline size_t find_uuid(const std::string& entry, const std::vector<std::string>& uuids,
                        std::string* problem) {
  constexpr size_t kPrefix = 4, kLength = 36;  // "GPU-", and 32 digits with their dashes
  const std::string wanted = lists_uuids(entry) ? lower(entry.substr(kPrefix, kLength)) : "";
  size_t found = kNone;
  for (size_t i = 0; i < uuids.size() && !wanted.empty(); ++i) {
    if (!lists_uuids(uuids[i]) || !uuids[i].substr(kPrefix).starts_with(wanted)) continue;
    if (found != kNone) {
      *problem = "several devices have UUIDs that begin with \"" + entry + "\"";
      return kNone;
    }
    found = i;
  }
  if (found == kNone) *problem = "no device has the UUID \"" + entry + "\"";
  return found;
}

}  // namespace internal

// Returns the position of the only UUID that begins with the entry ("GPU-8f2c"), or nullopt and the
// problem.
inline std::optional<size_t> position_of_uuid(const std::string& entry,
                                              const std::vector<std::string>& uuids,
                                              std::string* problem) {
  const size_t position = internal::find_uuid(entry, uuids, problem);
  return position == internal::kNone ? std::nullopt : std::optional(position);
}

// `uuid_of` returns the UUID of a device as uuid_text() writes it. Called only if
// lists_uuids(list).
inline VisibleDevices select_devices(std::string_view list, size_t count,
                                     const std::function<std::string(size_t)>& uuid_of) {
  VisibleDevices selected;
  if (list.empty()) {
    selected.problem = "the list is empty";
    return selected;
  }
  const bool by_uuid = lists_uuids(list);
  std::vector<std::string> uuids;
  for (size_t i = 0; by_uuid && i < count; ++i) uuids.push_back(uuid_of(i));
  while (true) {
    const size_t comma = list.find(',');
    const std::string entry(list.substr(0, comma));
    const size_t position = by_uuid ? internal::find_uuid(entry, uuids, &selected.problem)
                                    : internal::find_number(entry, count, &selected.problem);
    if (position == internal::kNone) return selected;
    const auto& taken = selected.positions;
    if (std::find(taken.begin(), taken.end(), position) != taken.end()) {
      return {{}, "\"" + entry + "\" names a device for the second time", true};
    }
    selected.positions.push_back(position);
    if (comma == std::string_view::npos) return selected;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace rcuda::cuda
