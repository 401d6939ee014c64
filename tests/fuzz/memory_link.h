// A Link that consists of two blocks of memory, for fuzzers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "common/transport/link.h"

namespace rcuda::fuzz {

// One side of a Link; the other side is only the memory `peer`. No peer ever answers, so a call
// that would have to wait reports a closed Link.
class MemoryLink : public transport::Link {
 public:
  // `shares_pages`: the trait that the peer can map regions, as over shared memory.
  MemoryLink(std::span<std::byte> own, std::span<std::byte> peer, bool shares_pages = false)
      : own_(own), peer_(peer), traits_{.name = "memory", .shares_pages = shares_pages} {}

  const transport::MediumTraits& traits() const override { return traits_; }
  std::span<std::byte> window() override { return own_; }
  size_t peer_window_bytes() const override { return peer_.size(); }
  Status put(uint64_t offset, std::span<const transport::Bytes> pieces, transport::Wake) override {
    for (const transport::Bytes piece : pieces) {
      if (offset > peer_.size() || piece.size() > peer_.size() - offset) std::abort();
      if (!piece.empty()) std::memcpy(peer_.data() + offset, piece.data(), piece.size());
      offset += piece.size();
    }
    return {};
  }
  Status wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point,
              transport::WokenBy) override {
    if (ready()) return {};
    closed_.store(true);
    return Status(Code::kUnavailable, "nobody is there");
  }
  void interrupt() override {}
  Result<transport::Region> expose(void*, size_t bytes, int, uint64_t) override {
    return transport::Region{transport::RegionId{1}, bytes};
  }
  Result<transport::Region> expose_device(void*, size_t, const transport::DeviceMemory&) override {
    return Status(Code::kUnsupported, "no device memory");
  }
  Status loop_back(void*, const void*, size_t) override {
    return Status(Code::kUnsupported, "no adapter");
  }
  Status unexpose(transport::RegionId) override { return {}; }
  Result<void*> map(transport::RegionId, size_t, void*) override { return nullptr; }
  Status unmap(transport::RegionId) override { return {}; }
  void write(transport::RegionId, uint64_t, const void*, size_t,
             transport::TransferDone done) override {
    done({});
  }
  void read(transport::RegionId, uint64_t, void*, size_t, transport::TransferDone done) override {
    done({});
  }
  Status status() const override {
    return closed_.load() ? Status(Code::kUnavailable, "this side closed the connection")
                          : Status();
  }
  void close() override { closed_.store(true); }
  transport::LinkCounters counters() const override { return {}; }
  void abandon() noexcept override {}

 private:
  const std::span<std::byte> own_, peer_;
  const transport::MediumTraits traits_;
  std::atomic<bool> closed_{false};
};

}  // namespace rcuda::fuzz
