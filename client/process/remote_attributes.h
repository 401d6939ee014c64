// The attributes of a device that are not true for a program on another machine.
//
// A device's attributes come from its server, and most of them describe the GPU alone. Some describe
// what the GPU shares with the processor and the adapters of its machine, and the application does
// not run there. Programs ask for these before they use such a feature.
// Threads: any. Blocking: none.
#pragma once

#include "common/wire/handshake.h"

namespace rcuda::client {

// Corrects the attributes that the server has told. Shorter lists stay short: an attribute beyond
// the end is unknown.
void correct_attributes(wire::DeviceInfo* info);

}  // namespace rcuda::client
