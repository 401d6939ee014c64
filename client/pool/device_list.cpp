#include "client/pool/device_list.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/host_port.h"
#include "common/base/list_text.h"
#include "common/base/parse_number.h"
#include "common/cuda/visible_devices.h"

namespace rcuda::client {
namespace {

constexpr std::string_view kThisMachine = "local";
constexpr uint32_t kMostNumbered = 1024;

Status malformed(const std::string& text, const std::string& why) {
  return Status(Code::kInvalidArgument,
                "\"" + text + "\" is not a device: " + why +
                    "; write host[@port]:gpu, for example node1:0, node1:0-3 or node2@8308:1");
}

using Devices = std::vector<DeviceAddress>;

// Removes the medium from the front of an address and returns it. Returns null without a medium.
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

// Returns the error for a server text in which no port follows the colon.
Status unknown_colon(const std::string& text, std::string_view host) {
  if (host.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos) {
    return malformed(text, "an IPv6 address needs brackets");
  }
  return malformed(text, "\"" + std::string(host.substr(0, host.find(':'))) +
                             "\" is not a medium (" + transport::medium_names() + ")");
}

// Sets host and port from "host", "host@port" or "host:port". The host may be "[address]".
Status take_server(const std::string& text, std::string_view server, DeviceAddress* device) {
  const bool has_bracket = server.starts_with('[');
  const size_t end = has_bracket ? std::min(server.find(']'), server.size() - 1) + 1 : 0;
  size_t mark = server.find('@', end);
  if (mark == std::string_view::npos) mark = server.find(':', end);
  std::string_view host = server.substr(0, mark);
  if (mark != std::string_view::npos) {
    const std::string_view port = server.substr(mark + 1);
    const bool is_number = port.find_first_not_of("0123456789") == std::string_view::npos;
    if (server[mark] == ':' && !is_number) return unknown_colon(text, server);
    if (!parse_number(port, &device->port) || device->port == 0) {
      return malformed(text, "\"" + std::string(port) + "\" is not a port");
    }
  }
  if (has_bracket) {
    if (!host.ends_with(']')) return malformed(text, "an IPv6 address needs brackets");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return unknown_colon(text, host);
  }
  if (host.empty()) return malformed(text, "the host is missing");
  device->host = host;
  return {};
}

// Adds a device for each GPU of "0", "0-3" or "GPU-8f2c".
Status add_gpus(const std::string& text, std::string_view gpus, DeviceAddress device,
                Devices* devices) {
  if (cuda::lists_uuids(gpus)) {
    device.uuid = gpus;
    devices->push_back(std::move(device));
    return {};
  }
  const size_t dash = gpus.find('-');
  uint32_t last = 0;
  if (!parse_number(gpus.substr(0, dash), &device.gpu) ||
      (dash != std::string_view::npos && !parse_number(gpus.substr(dash + 1), &last))) {
    return malformed(text, "\"" + std::string(gpus) + "\" is not a GPU number");
  }
  if (dash == std::string_view::npos) last = device.gpu;
  if (last < device.gpu || last - device.gpu >= kMostNumbered) {
    return malformed(text, "\"" + std::string(gpus) + "\" is not a range of GPUs");
  }
  for (uint64_t gpu = device.gpu; gpu <= last; ++gpu) {
    device.gpu = static_cast<uint32_t>(gpu);
    devices->push_back(device);
  }
  return {};
}

Result<Devices> devices_of_entry(const std::string& text) {
  DeviceAddress device;
  std::string_view rest = trimmed(text);
  if (rest.find(';') != std::string_view::npos) {
    return malformed(text, "commas separate devices, semicolons do not");
  }
  device.medium = take_medium(&rest);
  const size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return malformed(text, "the \":gpu\" is missing");
  RCUDA_RETURN_IF_ERROR(take_server(text, rest.substr(0, colon), &device));
  if (device.host == kThisMachine) {
    device.host = "localhost";
    if (!device.medium) device.medium = &transport::plain_medium(transport::Reach::kThisMachine);
  }
  Devices devices;
  RCUDA_RETURN_IF_ERROR(add_gpus(text, rest.substr(colon + 1), std::move(device), &devices));
  return devices;
}

Result<Devices> devices_of_list(std::string_view list) {
  Devices devices;
  while (true) {
    const size_t comma = list.find(',');
    const std::string entry(trimmed(list.substr(0, comma)));
    if (!entry.empty()) {
      RCUDA_ASSIGN_OR_RETURN(const Devices named,
                             devices_of_entry(entry).with_context("RCUDA_DEVICES"));
      devices.insert(devices.end(), named.begin(), named.end());
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

// Returns the devices of the numbered variables whose numbers are below `count`. `all`: a missing
// variable is an error.
Result<Devices> numbered_devices(const Environment& environment, uint32_t count, bool all) {
  Devices devices;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = numbered_variable(i);
    const char* entry = environment(name.c_str());
    if (!entry && !all) continue;
    if (!entry) {
      return Status(Code::kInvalidArgument, name + " is not set, but RCUDA_DEVICE_COUNT is " +
                                                std::to_string(count) +
                                                ": set this variable, or correct the count");
    }
    RCUDA_ASSIGN_OR_RETURN(DeviceAddress device, parse_device(entry).with_context(name));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace

Result<DeviceAddress> parse_device(const std::string& text) {
  RCUDA_ASSIGN_OR_RETURN(Devices devices, devices_of_entry(text));
  if (devices.size() == 1) return std::move(devices.front());
  return malformed(text, "it names several devices, and this variable takes one");
}

std::string device_text(const DeviceAddress& device) {
  return (device.medium ? std::string(device.medium->name()) + ":" : std::string()) +
         bracketed(device.host) + "@" + std::to_string(device.port) + ":" +
         (device.uuid.empty() ? std::to_string(device.gpu) : device.uuid);
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
