#include "p2p/staging/path.h"

#include <algorithm>
#include <utility>

namespace rcuda::p2p {

std::optional<Slot> ShmPath::reserve(uint64_t, uint64_t bytes) {
  const auto remote = inbox_.reserve(bytes);
  if (!remote) return std::nullopt;
  return Slot{base_ + *remote, *remote, bytes};
}

uint64_t WirePath::capacity_bytes() const { return std::min(outbox_.bytes(), inbox_.bytes()); }

std::optional<Slot> WirePath::reserve(uint64_t, uint64_t bytes) {
  const auto local = outbox_.reserve(bytes);
  if (!local) return std::nullopt;
  const auto remote = inbox_.reserve(bytes);
  if (!remote) {
    outbox_.release(*local, bytes);
    return std::nullopt;
  }
  return Slot{base_ + *local, *remote, bytes};
}

void WirePath::release(const Slot& slot) {
  outbox_.release(slot.local - base_, slot.bytes);
  inbox_.release(slot.remote, slot.bytes);
}

void WirePath::transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                        transport::TransferDone done) {
  const auto* local = reinterpret_cast<const void*>(slot.local);
  if (immediate == 0) {
    link_.write(region_, slot.remote, local, slot.bytes, std::move(done));
  } else {
    link_.write_with_immediate(region_, slot.remote, local, slot.bytes, immediate, company,
                               std::move(done));
  }
}

void DirectPath::transfer(const Slot& slot, uint32_t, transport::Company,
                          transport::TransferDone done) {
  link_.write(target_, slot.remote, reinterpret_cast<const void*>(slot.local), slot.bytes,
              std::move(done));
}

}  // namespace rcuda::p2p
