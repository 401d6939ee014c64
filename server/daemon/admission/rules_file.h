// The rules of a server's configuration file, with the users and groups of this machine. Blocking:
// for the file and the name service, so only at the start. Errors: as Rules::read().
#pragma once

#include "common/base/status.h"
#include "server/protocol/settings.h"
#include "server/quota/rules.h"

namespace rcuda::server {

// No rules if the settings name no file.
Result<Rules> read_rules(const Settings& settings);

}  // namespace rcuda::server
