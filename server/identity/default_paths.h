// The default files of a server's settings, tokens, certificate and leases: in /etc/rcuda if the
// server runs as root, otherwise in its user's ~/.config/rcuda. rcuda-token and rcuda-server must
// agree. Empty if the user has no home. Any thread, while no thread changes the environment.
#pragma once

#include <cstdint>
#include <string>

namespace rcuda::server {

std::string default_tokens_file();
std::string default_certificate_file();
std::string default_config_file();
std::string default_leases_file(uint16_t port);

}  // namespace rcuda::server
