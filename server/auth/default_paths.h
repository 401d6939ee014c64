// Where a server has its settings, its tokens and its certificate unless it is told otherwise: in
// /etc/rcuda if it runs as root, else in its user's ~/.config/rcuda. rcuda-token and rcuda-server
// must agree. Empty if the user has no home. Any thread, while none changes the environment.
#pragma once

#include <string>

namespace rcuda::server {

std::string default_tokens_file();
std::string default_certificate_file();
std::string default_config_file();

}  // namespace rcuda::server
