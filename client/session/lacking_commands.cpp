#include "client/session/lacking_commands.h"

#include "api/opcodes.h"
#include "api/traits.h"
#include "common/base/log.h"
#include "common/wire/protocol.h"

namespace rcuda::client {

namespace {

bool is_required(uint16_t opcode) {
  return opcode == static_cast<uint16_t>(wire::Custom::kPing) ||
         opcode == static_cast<uint16_t>(wire::Custom::kSessionEnd) ||
         api::traits_of(opcode).signals();
}

}  // namespace

Status LackingCommands::set(const std::vector<uint32_t>& opcodes) {
  for (const uint32_t number : opcodes) {
    if (number >= api::kMaxOpcodes) continue;
    const auto opcode = static_cast<uint16_t>(number);
    if (is_required(opcode)) {
      return Status(Code::kUnsupported,
                    std::string("the server runs another build of rcuda without a compatible ") +
                        api::opcode_name(opcode) +
                        ", which every program needs; install the same build on both sides");
    }
    opcodes_[opcode] = true;
  }
  any_ = opcodes_.any();
  return {};
}

CUresult LackingCommands::refuse(uint16_t opcode, const std::string& server) {
  MutexLock lock(mutex_);
  if (!logged_[opcode]) {
    logged_[opcode] = true;
    RCUDA_WARN(
        "%s runs another build of rcuda without a compatible %s: the call returns "
        "CUDA_ERROR_NOT_SUPPORTED; install the same build on both sides",
        server.c_str(), api::opcode_name(opcode));
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace rcuda::client
