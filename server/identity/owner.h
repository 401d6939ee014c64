// The owner of a session: the user and the client host, as one text. Sessions of one owner may open
// what each other has exported (server/names/exported_names.h). Pure functions; any thread.
#pragma once

#include <string>

#include "common/messages/handshake.h"
#include "server/identity/identity.h"

namespace rcuda::server {

// Of a client that has proved its identity, the user counts, together with the host that the client
// names. Of any other client only the address is known, so that and the names that the client gives
// count; none of these owners is an owner of a client that has proved its identity.
std::string owner_of(const Identity& identity, const wire::Hello& hello);

}  // namespace rcuda::server
