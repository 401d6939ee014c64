// The checks of a server from a user's machine: the steps of a program on its way to a session, in
// their order, up to the first step that fails.
#pragma once

#include <cstdint>
#include <string>

#include "common/messages/server_status.h"
#include "tools/rcuda-doctor/finding.h"

namespace rcuda::doctor {

// Queries the server as this user, with the credentials of the environment. Blocks for a few
// seconds; longer if name resolution or MUNGE hangs.
Findings check_server(const std::string& host, uint16_t port);

// The findings in the server's report about itself and the user. Pure. `clock_ms`: of this machine,
// since 1970.
Findings describe_server(const wire::ServerStatus& status, const std::string& own_version,
                         uint64_t clock_ms);

}  // namespace rcuda::doctor
