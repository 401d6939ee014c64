#include "p2p/link/host_identity.h"

#include "common/base/file_io.h"

namespace rcuda::p2p {

std::string host_identity() { return read_line("/proc/sys/kernel/random/boot_id"); }

}  // namespace rcuda::p2p
