// The fields of Allowance and SessionLimits in messages (message_codec.h). Only sources that encode
// or decode these messages include this file.
#pragma once

#include "common/messages/message_codec.h"
#include "server/quota/limits.h"

namespace rcuda::server {

template <typename Visitor>
void fields(Visitor& visit, Allowance& m) {
  visit.string("of", m.of);
  visit.number("device_memory", m.device_memory);
  visit.number("host_memory", m.host_memory);
  visit.number("bandwidth", m.bandwidth);
  visit.number("slot", m.slot);
}

template <typename Visitor>
void fields(Visitor& visit, SessionLimits& m) {
  visit.number("session_time", m.session_time);
  visit.number("idle_time", m.idle_time);
  visit.optional("priorities", m.priorities);
  visit.number("sm_percent", m.sm_percent);
  visit.number("priority", m.priority);
}

}  // namespace rcuda::server
