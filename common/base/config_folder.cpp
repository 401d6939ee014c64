#include "common/base/config_folder.h"

#include "common/base/absolute_variable.h"

namespace rcuda {

std::string config_folder() {
  if (const std::string config = absolute_variable("XDG_CONFIG_HOME"); !config.empty()) {
    return config + "/rcuda";
  }
  if (const std::string home = absolute_variable("HOME"); !home.empty())
    return home + "/.config/rcuda";
  return {};
}

}  // namespace rcuda
