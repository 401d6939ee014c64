// The commands that a session's worker cannot execute, because the server runs another build. The
// worker does not know these commands, or has other commands under their numbers
// (api/command_hashes.h). The client never sends them. Every session needs kPing, kSessionEnd and
// the commands whose completion words the client waits for. If the worker lacks a command that
// every session needs, the session does not begin.
//
// set() is called before the first command. The other functions may be called by any thread and
// block only to write to the log.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>

#include "api/command_hashes.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/wire/commands.h"

namespace rcuda::client {

class LackingCommands {
 public:
  // Stores the commands that the worker lacks. `opcodes`: from the Welcome; numbers that this build
  // does not use are ignored. Returns an error, which names the command, if every session needs one
  // of them.
  Status set(const std::vector<uint32_t>& opcodes);
  bool contains(uint16_t opcode) const {
    return any_ && opcode < api::kMaxOpcodes && opcodes_[opcode];
  }
  bool contains(wire::Custom opcode) const { return contains(static_cast<uint16_t>(opcode)); }
  // Returns CUDA_ERROR_NOT_SUPPORTED. Logs a warning the first time for each command. `server`: the
  // server's name for the message.
  CUresult refuse(uint16_t opcode, const std::string& server);

 private:
  bool any_ = false;
  std::bitset<api::kMaxOpcodes> opcodes_;
  Mutex mutex_;
  std::bitset<api::kMaxOpcodes> logged_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::client
