// Linked into a server, makes it look like a server of another build. Replaces command_hashes() of
// api/own_commands.cpp: some commands are missing, one command has another meaning, and one is new.
// Replaces form_of() of common/messages/forms.cpp: the server's answers to tools have another form;
// with SKEWED_GPUS_ONLY in the environment, only its GPU reports do. SKEWED_COMMAND names one more
// command with another meaning.
#include <cstdlib>
#include <string>
#include <vector>

#include "api/command_hashes.h"
#include "api/opcodes.h"
#include "common/messages/control_messages.h"
#include "common/messages/forms.h"
#include "common/messages/lease_messages.h"
#include "common/messages/server_status.h"

namespace rcuda::api {
namespace {

void skew(const std::string& name, std::vector<uint32_t>* hashes) {
  for (uint16_t opcode = 0; opcode < hashes->size(); ++opcode) {
    if (name == opcode_name(opcode)) (*hashes)[opcode] ^= 1;
  }
}

std::vector<uint32_t> skewed() {
  std::vector<uint32_t> hashes(internal::kHashes, internal::kHashes + internal::kHashCount);
  hashes[static_cast<uint16_t>(Opcode::cuMemsetD16Async)] = 0;
  hashes[static_cast<uint16_t>(Opcode::cuMemPoolCreate)] = 0;
  hashes[static_cast<uint16_t>(Opcode::cuMemPoolTrimTo)] ^= 1;
  if (const char* name = std::getenv("SKEWED_COMMAND")) skew(name, &hashes);
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

namespace rcuda::wire {

uint64_t form_of(MessageType type) {
  static const bool gpus_only = std::getenv("SKEWED_GPUS_ONLY") != nullptr;
  if (!gpus_only || type == MessageType::kGpuReport) return 4711;
  if (type == MessageType::kStatus) return layout_hash<ServerStatus>();
  const bool is_lease = type == MessageType::kLeaseRequest || type == MessageType::kLeaseAnswer;
  return is_lease ? layout_hash<LeaseRequest, LeaseAnswer>()
                  : layout_hash<ControlRequest, ControlAnswer>();
}

}  // namespace rcuda::wire
