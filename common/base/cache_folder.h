// Where files that can be made again are kept between runs: $CACHE_DIRECTORY (systemd's, for a
// service with CacheDirectory=), else $XDG_CACHE_HOME/rcuda, else ~/.cache/rcuda; empty where there
// is none of them. The folder need not exist. Any thread, as long as none changes the environment.
#pragma once

#include <string>

namespace rcuda {

std::string cache_folder();

}  // namespace rcuda
