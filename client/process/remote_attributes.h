// Device attributes that do not hold for a program on another machine.
//
// A device's attributes come from its server. Most describe the GPU alone, but some describe
// features that the GPU shares with the CPU and the adapters of its machine. The application runs
// on another machine and cannot use these features, so their attributes become 0. The attributes of
// features that rcuda does not support become 0, too.
// Threads: any. Blocking: none.
#pragma once

#include "common/messages/handshake.h"

namespace rcuda::client {

// Corrects the attributes that the server has reported. Does not extend a short list: attributes
// beyond its end are unknown.
void correct_attributes(wire::DeviceInfo* info);

}  // namespace rcuda::client
