#include "p2p/paths/path.h"

#include <algorithm>
#include <span>
#include <utility>

namespace rcuda::p2p {

std::optional<Place> ShmPath::reserve(uint64_t, uint64_t bytes) {
  const auto remote = inbox_.reserve(bytes);
  if (!remote) return std::nullopt;
  return Place{base_ + *remote, *remote, bytes};
}

namespace {

std::optional<Place> reserve_both(Arena& outbox, Arena& inbox, uint64_t base, uint64_t bytes) {
  const auto local = outbox.reserve(bytes);
  if (!local) return std::nullopt;
  const auto remote = inbox.reserve(bytes);
  if (!remote) {
    outbox.release(*local, bytes);
    return std::nullopt;
  }
  return Place{base + *local, *remote, bytes};
}

void release_both(Arena& outbox, Arena& inbox, uint64_t base, const Place& place) {
  outbox.release(place.local - base, place.bytes);
  inbox.release(place.remote, place.bytes);
}

}  // namespace

uint64_t WirePath::capacity_bytes() const { return std::min(outbox_.bytes(), inbox_.bytes()); }

std::optional<Place> WirePath::reserve(uint64_t, uint64_t bytes) {
  return reserve_both(outbox_, inbox_, base_, bytes);
}

void WirePath::release(const Place& place) { release_both(outbox_, inbox_, base_, place); }

void WirePath::ship(const Place& place, transport::TransferDone done) {
  link_.write(region_, place.remote, reinterpret_cast<const void*>(place.local), place.bytes,
              std::move(done));
}

uint64_t WindowPath::capacity_bytes() const { return std::min(outbox_.bytes(), inbox_.bytes()); }

std::optional<Place> WindowPath::reserve(uint64_t, uint64_t bytes) {
  return reserve_both(outbox_, inbox_, base_, bytes);
}

void WindowPath::release(const Place& place) { release_both(outbox_, inbox_, base_, place); }

void WindowPath::ship(const Place& place, transport::TransferDone done) {
  // Windows are written in words; places are rounded up to more.
  const uint64_t bytes = (place.bytes + 7) / 8 * 8;
  const transport::Bytes piece(reinterpret_cast<const std::byte*>(place.local), bytes);
  done(link_.put(first_ + place.remote, std::span(&piece, 1), transport::Wake::kNo));
}

void DirectPath::ship(const Place& place, transport::TransferDone done) {
  link_.write(target_, place.remote, reinterpret_cast<const void*>(place.local), place.bytes,
              std::move(done));
}

}  // namespace rcuda::p2p
