#include "server/executor/peers/peer_frees.h"

#include <utility>

#include "api/traits.h"
#include "common/wire/codec.h"

namespace rcuda::server {
namespace {

// Finds the memory that a command frees. Returns false if it frees none, or not in the way `how`.
bool freed_memory(const api::DriverTable& driver, api::Frees how, uint16_t opcode,
                  std::span<const std::byte> body, CUdeviceptr* base, size_t* bytes) {
  if (api::traits_of(opcode).frees != how) return false;
  const auto address = wire::Decoder(body).value<CUdeviceptr>();
  return driver.cuMemGetAddressRange_v2(base, bytes, address) == CUDA_SUCCESS;
}

}  // namespace

void PeerFrees::when_released(uint16_t opcode, std::span<const std::byte> body,
                              std::function<void()> then) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (!peers_.active() ||
      !freed_memory(driver_, api::Frees::kAtOnce, opcode, body, &base, &bytes)) {
    return then();
  }
  peers_.when_unused(base, bytes, [&jobs = jobs_, then = std::move(then)]() mutable {
    jobs.post(std::move(then));
  });
}

void PeerFrees::note_stream_ordered(uint16_t opcode, std::span<const std::byte> body) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (peers_.active() &&
      freed_memory(driver_, api::Frees::kInStream, opcode, body, &base, &bytes)) {
    peers_.when_unused(base, bytes, [] {});
  }
}

}  // namespace rcuda::server
