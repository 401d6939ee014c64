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

void WirePath::release(const Slot& place) {
  outbox_.release(place.local - base_, place.bytes);
  inbox_.release(place.remote, place.bytes);
}

void WirePath::ship(const Slot& place, uint32_t immediate, transport::Company company,
                    transport::TransferDone done) {
  const auto* local = reinterpret_cast<const void*>(place.local);
  if (immediate == 0) {
    link_.write(region_, place.remote, local, place.bytes, std::move(done));
  } else {
    link_.write_with_immediate(region_, place.remote, local, place.bytes, immediate, company,
                               std::move(done));
  }
}

void DirectPath::ship(const Slot& place, uint32_t, transport::Company,
                      transport::TransferDone done) {
  link_.write(target_, place.remote, reinterpret_cast<const void*>(place.local), place.bytes,
              std::move(done));
}

}  // namespace rcuda::p2p
