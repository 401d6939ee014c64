#include "common/config/variables.h"

#include <algorithm>
#include <string_view>

#include "common/base/nearest.h"

namespace rcuda::config {
namespace {

constexpr std::string_view kPrefix = "RCUDA_";
constexpr std::string_view kServer = "SERVER_";
constexpr std::string_view kUnchecked[] = {"TEST_", "SLURM_"};

// The variables of programs, and those of servers that do not begin with RCUDA_SERVER_.
// docs/settings.md lists them.
constexpr const char* kPrograms[] = {
    "COPY_THREADS",    "DEVICES",      "DEVICE_COUNT", "DRIVER",    "LEASE",      "LOG",
    "MANAGED",         "MUNGE_SOCKET", "NCCL",         "P2P",       "P2P_PATH",   "P2P_STRATEGY",
    "PLUGIN_DIR",      "RECONNECT",    "SECURITY",     "WAKE_WAIT", "SYNC",       "TLS_AUTHORITIES",
    "TLS_CERTIFICATE", "TOKEN_FILE",   "TRACE",        "TRANSPORT", "TRUST_USER", "VERBS_DEVICE",
    "VERBS_GID",       "WAIT",
};

// Whether this is one of the variables DEVICE_0, DEVICE_1, ..., each of which names a device.
bool is_numbered_device(std::string_view name) {
  constexpr std::string_view kDevice = "DEVICE_";
  return name.starts_with(kDevice) && name.size() > kDevice.size() &&
         name.find_first_not_of("0123456789", kDevice.size()) == name.npos;
}

}  // namespace

std::vector<std::string> program_variables() {
  return {std::begin(kPrograms), std::end(kPrograms)};
}

std::vector<std::string> unknown_variables(const char* const* environment, const Registry* server) {
  std::vector<std::string> names = program_variables();
  for (const SettingBase* setting : server ? server->settings() : std::vector<SettingBase*>()) {
    names.push_back(std::string(setting->variable()).substr(kPrefix.size()));
  }
  std::vector<std::string> lines;
  for (; environment && *environment; ++environment) {
    const std::string_view line = *environment;
    if (!line.starts_with(kPrefix)) continue;
    const std::string_view name = line.substr(kPrefix.size(), line.find('=') - kPrefix.size());
    const bool unchecked =
        is_numbered_device(name) || (!server && name.starts_with(kServer)) ||
        std::any_of(std::begin(kUnchecked), std::end(kUnchecked),
                    [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (unchecked || std::find(names.begin(), names.end(), name) != names.end()) continue;
    const std::string meant = nearest(name, names);
    lines.push_back(std::string(kPrefix) + std::string(name) + " is not a variable of rcuda" +
                    (meant.empty() ? "" : "; did you mean " + std::string(kPrefix) + meant + "?"));
  }
  return lines;
}

}  // namespace rcuda::config
