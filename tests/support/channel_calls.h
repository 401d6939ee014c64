// Functions that send a command over a Channel and wait for the answer.
#pragma once

#include "common/wire/channel.h"

namespace rcuda::test {

// Sends the command and waits for its reply. Blocks while all slots are in use.
inline Status call(wire::Channel& channel, wire::CommandHeader header, const wire::Command& command,
                   size_t reply_bytes, uint32_t* result, wire::Reply* reply) {
  wire::ReplySlot slot;
  (void)channel.acquire_slot(reply_bytes, true, &slot);
  slot.name_in(&header);
  if (Status status = channel.send(header, command); !status.ok()) {
    channel.release_slot(slot);
    return status;
  }
  // After a failure the slot stays taken, because the worker may still write its reply there.
  RCUDA_RETURN_IF_ERROR(channel.wait([&] { return channel.has_reply(slot); }));
  return channel.take_reply(slot, result, reply);
}

inline Status wait_word(wire::Channel& channel, const wire::Word& word, uint32_t* result) {
  return channel.wait([&] { return channel.word_reached(word, result); });
}

}  // namespace rcuda::test
