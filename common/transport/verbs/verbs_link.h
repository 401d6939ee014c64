// What the plug-in exports, as C++. See common/transport/link.h for the contract.
#pragma once

#include <memory>

#include "common/transport/link.h"

namespace rcuda::transport::verbs {

Status usable(int control_socket);
Result<std::unique_ptr<Link>> make_link(Bootstrap bootstrap, const LinkOptions& options);

}  // namespace rcuda::transport::verbs
