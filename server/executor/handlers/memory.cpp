// Handlers of memory: client memory that the GPUs can reach, and memory of pools.
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "api/server_commands.h"
#include "api/server_handlers.h"
#include "common/base/log.h"
#include "common/wire/marked_bytes.h"
#include "server/executor/core/custom.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/region_puts.h"
#include "server/executor/mirrors/fetches_behind.h"
#include "server/executor/mirrors/mirrors.h"
#include "server/executor/streams/pool_frees.h"

namespace rcuda::server {

HandlerResult host_expose(MemoryServices& services, const Command&,
                          const wire::HostExposeBody& body, std::vector<std::byte>* reply) {
  const CUresult result = services.host_memory.expose(body);
  const HostMemory::Range* const range = services.host_memory.find(body.address, 1);
  append(reply,
         static_cast<uint64_t>(result == CUDA_SUCCESS && range ? range->shadow_region
                                                               : transport::RegionId::kNone));
  return {result, false, false};
}

HandlerResult host_unexpose(MemoryServices& services, const Command&,
                            const wire::HostUnexposeBody& body) {
  services.region_puts.withdraw(static_cast<transport::RegionId>(body.region));
  const HostMemory::Range* const range = services.host_memory.find(body.address, 1);
  if (range) services.mirrors.forget_memory(body.address, range->bytes);
  return {services.host_memory.unexpose(body), false, false};
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

HandlerResult mirror(MemoryServices& services, const Command& command, const wire::MirrorBody& body,
                     std::vector<std::byte>*) {
  return services.mirrors.add(body, command.target);
}

HandlerResult unmirror(MemoryServices& services, const Command&,
                       const wire::MirrorFetchBody& body) {
  return {services.mirrors.remove(body.address), false, false};
}

HandlerResult mirror_fetch(MemoryServices& services, const Command& command,
                           const wire::MirrorFetchBody& body, std::vector<std::byte>*) {
  return services.mirrors.fetch(body.address, command.target);
}

HandlerResult mirror_fetch_behind(MemoryServices& services, const Command& command,
                                  const wire::MirrorFetchBehindBody& body,
                                  std::vector<std::byte>*) {
  return services.fetches_behind.add(body, command.target);
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
  return services.fetches_behind.add_news({body.word_behind, body.sequence_behind},
                                          std::move(asked), command.target);
}

HandlerResult mirror_changes(MemoryServices& services, const Command& command,
                             const wire::MirrorChangesBody& body, std::vector<std::byte>*) {
  return services.mirrors.changes(body.address, command.target);
}

HandlerResult mirror_note(MemoryServices& services, const Command&,
                          const wire::MirrorNoteBody& body) {
  return {services.mirrors.note(body), false, false};
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
  return {
      services.mirrors.patch(body, bytes, reinterpret_cast<const uint8_t*>(mask.data()), aligned),
      false, false};
}

HandlerResult mirror_sent(MemoryServices& services, const Command&) {
  return {services.mirrors.sent(), false, false};
}

HandlerResult mirror_await(MemoryServices& services, const Command&,
                           const wire::MirrorAwaitBody& body) {
  return {services.mirrors.await(body.stream), false, false};
}

// ---- memory of pools ---------------------------------------------------------------------------

CUresult serve_cuMemFreeAsync(MemoryServices& services, CUdeviceptr dptr, CUstream hStream) {
  const auto free = services.driver.cuMemFreeAsync;
  if (free == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  services.pool_frees.note();
  return free(dptr, hStream);
}

CUresult serve_cuMemPoolTrimTo(MemoryServices& services, CUmemoryPool pool, size_t minBytesToKeep) {
  const auto trim = services.driver.cuMemPoolTrimTo;
  if (trim == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  services.pool_frees.reached_all();
  return trim(pool, minBytesToKeep);
}

CUresult serve_rcuda_allocation_release(MemoryServices& services,
                                        CUmemGenericAllocationHandle handle) {
  return services.driver.cuMemRelease ? services.driver.cuMemRelease(handle)
                                      : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace rcuda::server
