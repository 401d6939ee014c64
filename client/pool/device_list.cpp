#include "client/pool/device_list.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "common/cuda/visible_devices.h"

namespace rcuda::client {
namespace {

constexpr std::string_view kThisMachine = "local";
constexpr uint32_t kMostNumbered = 1024;

Status malformed(const std::string& text, const std::string& why) {
  return Status(Code::kInvalidArgument,
                "\"" + text + "\" is not a device: " + why +
                    "; write host[@port]:gpu, for example node1:0 or node2@8308:1");
}

template <typename T>
bool parse_number(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// Removes the medium from the front of an address and returns it. Returns null if there is none.
const transport::Medium* take_medium(std::string_view* text) {
  const size_t colon = text->find(':');
  // "tcp:0" is GPU 0 of a host called tcp; a medium is followed by a host and a GPU.
  if (colon == std::string_view::npos || text->find(':', colon + 1) == std::string_view::npos) {
    return nullptr;
  }
  const transport::Medium* medium = transport::find_medium(text->substr(0, colon));
  if (medium) text->remove_prefix(colon + 1);
  return medium;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

using Devices = std::vector<DeviceAddress>;

Result<Devices> devices_of_list(std::string_view list) {
  Devices devices;
  while (true) {
    const size_t comma = list.find(',');
    const std::string entry(trimmed(list.substr(0, comma)));
    if (!entry.empty()) {
      RCUDA_ASSIGN_OR_RETURN(DeviceAddress device,
                             parse_device(entry).with_context("RCUDA_DEVICES"));
      devices.push_back(std::move(device));
    }
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  if (devices.empty()) {
    return Status(Code::kInvalidArgument,
                  "RCUDA_DEVICES is empty; write for example RCUDA_DEVICES=node1:0");
  }
  return devices;
}

// Returns the devices of the numbered variables below `count`. `all`: a missing variable is an
// error.
Result<Devices> numbered_devices(const Environment& environment, uint32_t count, bool all) {
  Devices devices;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = numbered_variable(i);
    const char* entry = environment(name.c_str());
    if (!entry && !all) continue;
    if (!entry) {
      return Status(Code::kInvalidArgument,
                    name + " is not set, but RCUDA_DEVICE_COUNT is " + std::to_string(count));
    }
    RCUDA_ASSIGN_OR_RETURN(DeviceAddress device, parse_device(entry).with_context(name));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace

Result<DeviceAddress> parse_device(const std::string& text) {
  DeviceAddress device;
  std::string_view rest = trimmed(text);
  device.medium = take_medium(&rest);
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return malformed(text, "the \":gpu\" is missing");
  if (!parse_number(rest.substr(colon + 1), &device.gpu)) {
    return malformed(text, "\"" + std::string(rest.substr(colon + 1)) + "\" is not a GPU number");
  }
  std::string_view host = rest.substr(0, colon);
  if (const size_t at = host.rfind('@'); at != std::string_view::npos) {
    if (!parse_number(host.substr(at + 1), &device.port) || device.port == 0) {
      return malformed(text, "\"" + std::string(host.substr(at + 1)) + "\" is not a port");
    }
    host = host.substr(0, at);
  }
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return malformed(text, "an IPv6 address needs brackets");
  }
  if (host.empty()) return malformed(text, "the host is missing");
  device.host = host;
  if (host == kThisMachine) {
    device.host = "localhost";
    if (!device.medium) device.medium = &transport::plain_medium(transport::Reach::kThisMachine);
  }
  return device;
}

std::string device_text(const DeviceAddress& device) {
  const bool is_v6 = device.host.find(':') != std::string::npos;
  return (device.medium ? std::string(device.medium->name()) + ":" : std::string()) +
         (is_v6 ? "[" + device.host + "]" : device.host) + "@" + std::to_string(device.port) + ":" +
         std::to_string(device.gpu);
}

std::string numbered_variable(uint32_t number) { return "RCUDA_DEVICE_" + std::to_string(number); }

Result<std::vector<DeviceAddress>> devices_from(const Environment& environment) {
  if (const char* list = environment("RCUDA_DEVICES")) return devices_of_list(list);
  if (const char* count_text = environment("RCUDA_DEVICE_COUNT")) {
    uint32_t count = 0;
    if (!parse_number(std::string_view(count_text), &count) || count == 0 ||
        count > kMostNumbered) {
      return Status(Code::kInvalidArgument, "RCUDA_DEVICE_COUNT=" + std::string(count_text) +
                                                " is not a number of devices (1 to 1024)");
    }
    return numbered_devices(environment, count, true);
  }
  Result<Devices> devices = numbered_devices(environment, kMostNumbered, false);
  if (devices.ok() && devices->empty()) {
    return Status(Code::kNotFound,
                  "RCUDA_DEVICES is not set; name the remote GPUs, for example "
                  "RCUDA_DEVICES=node1:0,node2:0");
  }
  return devices;
}

Result<VisibleSelection> visible_devices(const std::vector<DeviceAddress>& pool,
                                         const Environment& environment, const PoolUuids& uuids) {
  const char* list = environment("CUDA_VISIBLE_DEVICES");
  if (!list) return VisibleSelection{pool, {}};
  std::vector<std::string> known;
  if (cuda::lists_uuids(list)) {
    RCUDA_ASSIGN_OR_RETURN(std::vector<std::string> read, uuids());
    known = std::move(read);
  }
  const cuda::VisibleDevices chosen =
      cuda::select_devices(list, pool.size(), [&](size_t i) { return known[i]; });
  VisibleSelection selection;
  selection.problem = chosen.problem;
  selection.named_twice = chosen.named_twice;
  for (const size_t position : chosen.positions) selection.devices.push_back(pool[position]);
  return selection;
}

Result<std::vector<ServerDevices>> group_by_server(const std::vector<DeviceAddress>& devices) {
  std::vector<ServerDevices> servers;
  for (uint32_t i = 0; i < devices.size(); ++i) {
    const DeviceAddress& device = devices[i];
    auto server = std::find_if(servers.begin(), servers.end(), [&](const ServerDevices& known) {
      return known.medium == device.medium && known.host == device.host &&
             known.port == device.port;
    });
    if (server == servers.end()) {
      server = servers.insert(servers.end(), {device.medium, device.host, device.port, {}, {}});
    }
    if (std::find(server->gpus.begin(), server->gpus.end(), device.gpu) != server->gpus.end()) {
      return Status(Code::kInvalidArgument, "RCUDA_DEVICES: GPU " + std::to_string(device.gpu) +
                                                " of " + device.host +
                                                " is named twice; name each GPU once");
    }
    server->gpus.push_back(device.gpu);
    server->ordinals.push_back(i);
  }
  return servers;
}

}  // namespace rcuda::client
