#include "server/sandbox/device_scope.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace rcuda::server {
namespace {

constexpr std::string_view kGpuNode = "nvidia";
constexpr char kNoNode[] = "-";

}  // namespace

// "2 GPU-... nvidia2,3 GPU-... -"
std::string text_of(const DeviceScope& scope) {
  std::string text;
  for (const DeviceScope::Device& device : scope.devices) {
    if (!text.empty()) text += ',';
    text += std::to_string(device.ordinal) + ' ' + device.uuid + ' ' +
            (device.node.empty() ? kNoNode : device.node);
  }
  return text;
}

Result<DeviceScope> parse_scope(const std::string& text) {
  DeviceScope scope;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    std::istringstream words(item);
    DeviceScope::Device device;
    std::string rest;
    if (!(words >> device.ordinal >> device.uuid >> device.node) || words >> rest) {
      return Status(Code::kInvalidArgument,
                    std::string(kScopeVariable) + " is malformed: \"" + item + "\"");
    }
    if (device.node == kNoNode) device.node.clear();
    if (!device.node.empty() && !is_gpu_node(device.node)) {
      return Status(Code::kInvalidArgument,
                    std::string(kScopeVariable) + " names no GPU's node: \"" + item + "\"");
    }
    scope.devices.push_back(std::move(device));
  }
  return scope;
}

std::string node_of(const std::string& pci_bus_id, const std::string& driver) {
  std::string folder = pci_bus_id;
  std::transform(folder.begin(), folder.end(), folder.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(driver + "/gpus/" + folder + "/information");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kMinor = "Device Minor:";
    if (!line.starts_with(kMinor)) continue;
    std::istringstream number(line.substr(kMinor.size()));
    unsigned minor = 0;
    if (number >> minor) return std::string(kGpuNode) + std::to_string(minor);
  }
  return {};
}

bool is_gpu_node(const std::string& name) {
  return name.starts_with(kGpuNode) && name.size() > kGpuNode.size() &&
         std::all_of(name.begin() + kGpuNode.size(), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::string> gpu_nodes(const std::string& folder) {
  std::vector<std::string> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_gpu_node(entry.path().filename())) nodes.push_back(entry.path().filename());
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace rcuda::server
