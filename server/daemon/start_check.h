// Checks whether a server can start with its settings, for rcuda-server --check-config: does each
// step of the start that can fail.
//
// The check serves no clients, so another server may run with the same settings meanwhile. If that
// server has the port, the check tries another port of the same address. Instead of making the
// files of a start, the check finds out whether it could make them. Exception: as root, the check
// makes the folders /run/rcuda and /run/rcuda/containers with local sockets in them. At its end, it
// removes the sockets; the folders stay.
#pragma once

#include "common/base/status.h"
#include "server/daemon/connection/listener.h"
#include "server/protocol/settings.h"

namespace rcuda::server {

// An error of listen_on(), with the origin of the setting that caused it: the port or the address.
Status listen_failure(const Settings& settings, const Status& status);

// Refuses a server without identification on a public address, unless the setting security is
// insecure-public: any host that reaches the address could run code on the machine.
Status check_exposure(const Settings& settings, const Listener& listener);

// Fails if a setting names a file or folder that does not exist or cannot be used: the file of
// tokens, the folder of the leases' file, the folder of the images, and the library of NCCL. The
// server itself makes the default files and folders when it needs them.
Status check_named_files(const Settings& settings);

// Blocks until a worker has started its driver, for the start timeout at most. Returns the error
// that the start would return.
Status check_start(const Settings& settings);

}  // namespace rcuda::server
