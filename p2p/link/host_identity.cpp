#include "p2p/link/host_identity.h"

#include <fstream>

namespace rcuda::p2p {

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  std::getline(file, identity);
  return identity;
}

}  // namespace rcuda::p2p
