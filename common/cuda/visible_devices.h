// CUDA_VISIBLE_DEVICES, as the driver reads it: a list of numbers, or of UUIDs or their beginnings.
//
// The first entry decides which of the two the list has. The list ends before the first entry that
// names no device: a negative or too large number, a text that is neither, the beginning of several
// UUIDs, an entry of the other form. A device that is named twice leaves none. A number is what
// strtol() reads: white space and a sign may precede its digits, and what follows them is ignored.
// PyTorch found these rules by trying (torch/cuda/__init__.py, _parse_visible_devices).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace rcuda::cuda {

struct VisibleDevices {
  std::vector<size_t> positions;  // in the order of the list
  std::string problem;            // why the list ended early; empty: it did not
};

// Whether selecting needs the devices' UUIDs.
inline bool lists_uuids(std::string_view list) {
  return list.starts_with("GPU-") || list.starts_with("MIG-");
}

// `uuid_of` returns the UUID of a device as uuid_text() writes it. It is called only if
// lists_uuids().
inline VisibleDevices select_devices(std::string_view list, size_t count,
                                     const std::function<std::string(size_t)>& uuid_of) {
  VisibleDevices selected;
  if (list.empty()) {
    selected.problem = "it is empty";
    return selected;
  }
  const bool by_uuid = lists_uuids(list);
  const std::string_view form = list.substr(0, 4);
  std::vector<std::string> uuids;
  for (size_t i = 0; by_uuid && i < count; ++i) uuids.push_back(uuid_of(i));
  const auto find_uuid = [&](const std::string& entry) {
    const auto begins = [&](const std::string& uuid) { return uuid.starts_with(entry); };
    const auto found = std::find_if(uuids.begin(), uuids.end(), begins);
    if (!entry.starts_with(form) || found == uuids.end()) {
      selected.problem = "no device has the UUID \"" + entry + "\"";
    } else if (std::find_if(found + 1, uuids.end(), begins) != uuids.end()) {
      selected.problem = "several devices have UUIDs that begin with \"" + entry + "\"";
    }
    return static_cast<size_t>(found - uuids.begin());
  };
  const auto find_number = [&](const std::string& entry) {
    char* end = nullptr;
    const long number = std::strtol(entry.c_str(), &end, 10);
    if (end == entry.c_str()) {
      selected.problem = "\"" + entry + "\" is neither a number nor a UUID";
    } else if (number < 0 || static_cast<size_t>(number) >= count) {
      selected.problem =
          "there is no device " + std::to_string(number) + " among " + std::to_string(count);
    }
    return static_cast<size_t>(number);
  };
  while (true) {
    const size_t comma = list.find(',');
    const std::string entry(list.substr(0, comma));
    const size_t position = by_uuid ? find_uuid(entry) : find_number(entry);
    if (!selected.problem.empty()) return selected;
    const auto& taken = selected.positions;
    if (std::find(taken.begin(), taken.end(), position) != taken.end()) {
      return {{}, "\"" + entry + "\" names a device for the second time"};
    }
    selected.positions.push_back(position);
    if (comma == std::string_view::npos) return selected;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace rcuda::cuda
