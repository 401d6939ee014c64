#include "tools/rcuda-run/cdi.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "client/pool/device_list.h"
#include "common/base/config_folder.h"
#include "common/base/json_text.h"
#include "common/reach/connect.h"
#include "common/transport/media.h"

namespace rcuda::tools {
namespace {

namespace fs = std::filesystem;

// The oldest CDI version that allows device names with a leading digit; older tools refuse newer
// versions.
constexpr const char* kVersion = "0.5.0";
constexpr const char* kKind = "rcuda/gpu";
// The folder in the container for all files of rcuda. Images do not have this folder.
constexpr const char* kFolder = "/opt/rcuda";

// Settings of a program that name a file.
constexpr std::array kFiles{
    std::pair{"RCUDA_TOKEN_FILE", "/token"},
    std::pair{"RCUDA_TLS_CERTIFICATE", "/certificate.pem"},
    std::pair{"RCUDA_TLS_AUTHORITIES", "/authorities.pem"},
};
// The beginnings of variables that are not passed to a container. The container gets other values
// for the pool and the credential files. The other variables are for servers, or name files of this
// machine.
constexpr std::array<std::string_view, 8> kNotPassed{
    "RCUDA_DEVICE",       "RCUDA_SERVER_",    "RCUDA_DRIVER",          "RCUDA_PLUGIN_DIR",
    "RCUDA_MUNGE_SOCKET", "RCUDA_TOKEN_FILE", "RCUDA_TLS_CERTIFICATE", "RCUDA_TLS_AUTHORITIES"};

struct Mount {
  std::string host, container;
};

struct Edits {
  std::vector<std::string> variables;
  std::vector<Mount> mounts;
};

// Returns the member "containerEdits" of an object, as indented JSON.
std::string json_of(const Edits& edits, const std::string& indent) {
  std::string text = indent + "\"containerEdits\": {\n" + indent + "  \"env\": [";
  const char* separator = "\n";
  for (const std::string& variable : edits.variables) {
    text += separator + indent + "    " + json_text(variable);
    separator = ",\n";
  }
  text += "\n" + indent + "  ]";
  if (!edits.mounts.empty()) {
    text += ",\n" + indent + "  \"mounts\": [";
    separator = "\n";
    for (const Mount& mount : edits.mounts) {
      text += separator + indent + "    {\"hostPath\": " + json_text(mount.host) +
              ", \"containerPath\": " + json_text(mount.container) +
              ", \"options\": [\"ro\", \"nosuid\", \"bind\"]}";
      separator = ",\n";
    }
    text += "\n" + indent + "  ]";
  }
  return text + "\n" + indent + "}";
}

std::string json_of(const std::string& name, const Edits& edits) {
  return "    {\n      \"name\": " + json_text(name) + ",\n" + json_of(edits, "      ") + "\n    }";
}

void add_library(const fs::path& client, const fs::path& names, Edits* edits) {
  const fs::path folder = names.parent_path();
  const std::string in_container = std::string(kFolder) + "/lib";
  const auto path = [&](const fs::path& file) {
    return (in_container / file.lexically_relative(folder)).string();
  };
  edits->mounts.push_back({folder.string(), in_container});
  std::error_code error;
  const fs::path nccl = names / kNcclName;
  edits->variables.push_back("LD_PRELOAD=" + path(client) +
                             (fs::exists(nccl, error) ? ":" + path(nccl) : ""));
  edits->variables.push_back("LD_LIBRARY_PATH=" + path(names));
  // JAX looks for a GPU only if this file exists.
  edits->mounts.push_back({"/dev/null", "/dev/nvidiactl"});
}

Status add_credentials(Edits* edits) {
  for (const auto& [variable, place] : kFiles) {
    const char* const value = std::getenv(variable);
    std::error_code error;
    fs::path file = value ? value : "";
    if (file.empty() && std::string_view(variable) == "RCUDA_TOKEN_FILE") {
      file = config_folder() + "/token";
      if (!fs::exists(file, error)) continue;
    }
    if (file.empty()) continue;
    file = fs::absolute(file, error);
    if (!fs::exists(file, error)) {
      return Status(Code::kInvalidArgument,
                    std::string(variable) + ": there is no file " + file.string());
    }
    const std::string in_container = std::string(kFolder) + place;
    edits->mounts.push_back({file.string(), in_container});
    edits->variables.push_back(std::string(variable) + "=" + in_container);
  }
  return {};
}

// Mounts the folder of the sockets that servers of root on this machine have for containers. In the
// container it is where clients look for a server's socket. The folder, unlike a socket, remains
// when a server restarts.
void add_local_servers(const std::vector<client::DeviceAddress>& devices, Edits* edits) {
  const bool any = std::any_of(devices.begin(), devices.end(), [](const auto& device) {
    return device.medium && device.medium->traits.reach == transport::Reach::kThisMachine;
  });
  std::error_code error;
  if (!any || !fs::exists(wire::LocalAddress::kContainersFolder, error)) return;
  edits->mounts.push_back(
      {wire::LocalAddress::kContainersFolder, wire::LocalAddress::kRootsFolder});
}

void add_settings(Edits* edits) {
  std::vector<std::string> settings;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const auto begins = [&](std::string_view start) { return text.starts_with(start); };
    if (begins("RCUDA_") && std::none_of(kNotPassed.begin(), kNotPassed.end(), begins)) {
      settings.emplace_back(text);
    }
  }
  std::sort(settings.begin(), settings.end());
  edits->variables.insert(edits->variables.end(), settings.begin(), settings.end());
}

}  // namespace

Result<std::string> cdi_specification(const fs::path& client, const fs::path& names) {
  const auto devices = client::devices_from([](const char* name) { return std::getenv(name); });
  if (!devices.ok()) return devices.status();
  std::vector<client::DeviceAddress> numbered;
  std::ranges::copy_if(*devices, std::back_inserter(numbered),
                       [](const auto& device) { return device.uuid.empty(); });
  RCUDA_RETURN_IF_ERROR(client::group_by_server(numbered).status());

  Edits common;
  add_library(client, names, &common);
  RCUDA_RETURN_IF_ERROR(add_credentials(&common));
  add_local_servers(*devices, &common);
  add_settings(&common);

  Edits all;
  std::string list;
  for (uint32_t i = 0; i < devices->size(); ++i) {
    const std::string variable =
        client::numbered_variable(i) + "=" + client::device_text((*devices)[i]);
    all.variables.push_back(variable);
    list += json_of(std::to_string(i), Edits{{variable}, {}}) + ",\n";
  }
  list += json_of("all", all);
  return "{\n  \"cdiVersion\": " + json_text(kVersion) + ",\n  \"kind\": " + json_text(kKind) +
         ",\n" + json_of(common, "  ") + ",\n  \"devices\": [\n" + list + "\n  ]\n}\n";
}

}  // namespace rcuda::tools
