#include "server/identity/default_paths.h"

#include <unistd.h>

#include "common/base/config_folder.h"

namespace rcuda::server {
namespace {

std::string in_folder(const std::string& name) {
  const std::string folder = ::geteuid() == 0 ? "/etc/rcuda" : config_folder();
  return folder.empty() ? folder : folder + "/" + name;
}

}  // namespace

std::string default_tokens_file() { return in_folder("tokens"); }
std::string default_certificate_file() { return in_folder("server.pem"); }
std::string default_config_file() { return in_folder("server.toml"); }

// The name has the port, because a user may have several servers.
std::string default_leases_file(uint16_t port) {
  return in_folder("leases-" + std::to_string(port));
}

}  // namespace rcuda::server
