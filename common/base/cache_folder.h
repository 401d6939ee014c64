// The folder for files that can be recreated and are kept between runs: $CACHE_DIRECTORY (set by
// systemd for a service with CacheDirectory=), else $XDG_CACHE_HOME/rcuda, else ~/.cache/rcuda.
// Empty if none of these variables has an absolute path. The folder may not exist. Any thread,
// while no thread changes the environment.
#pragma once

#include <string>

namespace rcuda {

std::string cache_folder();

}  // namespace rcuda
