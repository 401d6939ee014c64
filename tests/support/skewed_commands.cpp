// A server of another build, as far as its commands go: it replaces command_hashes() of
// api/stubs/own_commands.cpp. Some commands are missing, one has another meaning, and one is new.
#include "api/command_hashes.h"
#include "api/opcodes.h"

namespace rcuda::api {
namespace {

std::vector<uint32_t> skewed() {
  std::vector<uint32_t> hashes(internal::kHashes, internal::kHashes + internal::kHashCount);
  hashes[static_cast<uint16_t>(Opcode::cuMemsetD16Async)] = 0;
  hashes[static_cast<uint16_t>(Opcode::cuMemPoolCreate)] = 0;
  hashes[static_cast<uint16_t>(Opcode::cuMemPoolTrimTo)] ^= 1;
  hashes.resize(kMaxOpcodes);
  hashes.back() = 1;
  return hashes;
}

}  // namespace

std::span<const uint32_t> command_hashes() {
  static const auto* hashes = new std::vector<uint32_t>(skewed());
  return *hashes;
}

}  // namespace rcuda::api
