// The folder for a user's settings and secrets: $XDG_CONFIG_HOME/rcuda, else ~/.config/rcuda. Empty
// if neither XDG_CONFIG_HOME nor HOME is an absolute path. The folder may not exist. Any thread,
// while no thread changes the environment.
#pragma once

#include <string>

namespace rcuda {

std::string config_folder();

}  // namespace rcuda
