// The default files of a server's settings, tokens, certificate and leases: in /etc/rcuda if the
// server runs as root, otherwise in $XDG_CONFIG_HOME/rcuda or ~/.config/rcuda. rcuda-token and
// rcuda-server both use these functions, so they use the same files. A path is empty if neither
// XDG_CONFIG_HOME nor HOME is set. Any thread, while no thread changes the environment.
#pragma once

#include <cstdint>
#include <string>

namespace rcuda::server {

std::string default_tokens_file();
std::string default_certificate_file();
std::string default_config_file();
std::string default_leases_file(uint16_t port);

}  // namespace rcuda::server
