// Handlers for client memory that the GPUs can reach, and for mirrors.
#include <cstring>
#include <vector>

#include "api/server_commands.h"
#include "common/wire/marked_bytes.h"
#include "server/executor/core/custom.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/region_puts.h"
#include "server/executor/mirrors/mirrors.h"

namespace rcuda::server {

HandlerResult host_expose(MemoryServices& services, const Command&,
                          const wire::HostExposeBody& body, std::vector<std::byte>* reply) {
  const CUresult result = services.host_memory.expose(body);
  const HostMemory::Range* const range = services.host_memory.find(body.address, 1);
  append(reply,
         static_cast<uint64_t>(result == CUDA_SUCCESS && range ? range->shadow_region
                                                               : transport::RegionId::kNone));
  return result;
}

HandlerResult host_unexpose(MemoryServices& services, const Command&,
                            const wire::HostUnexposeBody& body) {
  services.region_puts.withdraw(static_cast<transport::RegionId>(body.region));
  const HostMemory::Range* const range = services.host_memory.find(body.address, 1);
  if (range) services.mirrors.forget_memory(body.address, range->bytes);
  return services.host_memory.unexpose(body);
}

CUresult serve_rcuda_p2p_tokens(MemoryServices& services, CUdeviceptr address,
                                unsigned long long* token, unsigned* space) {
  CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens{};
  const CUresult result =
      services.driver.cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, address);
  *token = tokens.p2pToken;
  *space = tokens.vaSpaceToken;
  return result;
}

HandlerResult mirror_news(MemoryServices& services, const Command& command,
                          const wire::MirrorNewsBody& body, std::vector<std::byte>*) {
  BodyReader in(command.tail);
  std::span<const std::byte> bytes;
  if (body.count > wire::kMaxCommandBytes / sizeof(wire::MirrorKnown) ||
      !in.bytes(body.count * sizeof(wire::MirrorKnown), &bytes) ||
      body.word_behind >= wire::ClientWindow::kCompletionCount) {
    return kMalformed;
  }
  std::vector<wire::MirrorKnown> asked(body.count);
  if (!asked.empty()) std::memcpy(asked.data(), bytes.data(), bytes.size());
  return services.mirrors.news_after({body.word_behind, body.sequence_behind}, std::move(asked),
                                     command.target);
}

HandlerResult mirror_patch(MemoryServices& services, const Command& command,
                           const wire::MirrorPatchBody& body) {
  constexpr uint64_t kBlock = BlockDigests::kLeastBlockBytes;
  if (body.bytes == 0 || body.bytes > wire::kMostPatchBlocks * kBlock ||
      body.offset > UINT64_MAX - body.bytes) {
    return kMalformed;
  }
  BodyReader in(command.tail);
  std::span<const std::byte> bytes, mask, digests;
  const size_t blocks = (body.offset + body.bytes - 1) / kBlock - body.offset / kBlock + 1;
  if (!in.bytes(body.bytes, &bytes) || !in.bytes(wire::mask_bytes(body.bytes), &mask) ||
      !in.bytes(blocks * sizeof(wire::BlockDigest), &digests)) {
    return kMalformed;
  }
  std::vector<wire::BlockDigest> aligned(blocks);
  std::memcpy(aligned.data(), digests.data(), digests.size());
  return services.mirrors.patch(body, bytes, reinterpret_cast<const uint8_t*>(mask.data()),
                                aligned);
}

}  // namespace rcuda::server
