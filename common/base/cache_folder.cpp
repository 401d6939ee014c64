#include "common/base/cache_folder.h"

#include "common/base/absolute_variable.h"

namespace rcuda {

std::string cache_folder() {
  if (std::string service = absolute_variable("CACHE_DIRECTORY"); !service.empty()) return service;
  if (const std::string cache = absolute_variable("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/rcuda";
  if (const std::string home = absolute_variable("HOME"); !home.empty())
    return home + "/.cache/rcuda";
  return {};
}

}  // namespace rcuda
