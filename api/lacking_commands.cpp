#include "api/command_hashes.h"

namespace rcuda::api {

std::vector<uint32_t> lacking_commands(std::span<const uint32_t> theirs,
                                       std::span<const uint32_t> ours) {
  std::vector<uint32_t> lacking;
  for (uint32_t opcode = 0; opcode < theirs.size(); ++opcode) {
    const uint32_t own = opcode < ours.size() ? ours[opcode] : 0;
    if (theirs[opcode] != 0 && theirs[opcode] != own) lacking.push_back(opcode);
  }
  return lacking;
}

}  // namespace rcuda::api
