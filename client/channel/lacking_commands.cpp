#include "client/channel/lacking_commands.h"

#include "api/opcodes.h"
#include "common/base/log.h"

namespace rcuda::client {

void LackingCommands::set(const std::vector<uint32_t>& opcodes) {
  for (const uint32_t opcode : opcodes) {
    if (opcode < api::kMaxOpcodes) opcodes_[opcode] = true;
  }
  any_ = opcodes_.any();
}

CUresult LackingCommands::refuse(uint16_t opcode, const std::string& server) {
  std::lock_guard lock(mutex_);
  if (!logged_[opcode]) {
    logged_[opcode] = true;
    RCUDA_WARN(
        "%s is of another build of rcuda and has no %s like this one's: it returns "
        "CUDA_ERROR_NOT_SUPPORTED; install the same build on both",
        server.c_str(), api::opcode_name(opcode));
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace rcuda::client
