#include "p2p/staging/path.h"

#include <utility>

namespace rcuda::p2p {

std::optional<Slot> Path::reserve(uint64_t offset, uint64_t bytes) {
  if (!inbox) return Slot{base + offset, offset, bytes};
  const auto remote = inbox->reserve(bytes);
  if (!remote) return std::nullopt;
  if (!outbox) return Slot{base + *remote, *remote, bytes};
  const auto local = outbox->reserve(bytes);
  if (local) return Slot{base + *local, *remote, bytes};
  inbox->release(*remote, bytes);
  return std::nullopt;
}

void Path::release(const Slot& slot) {
  if (outbox) outbox->release(slot.local - base, slot.bytes);
  if (inbox) inbox->release(slot.remote, slot.bytes);
}

void Path::transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                    transport::TransferDone done) {
  const auto* local = reinterpret_cast<const void*>(slot.local);
  if (immediate == 0) {
    link->write(region, slot.remote, local, slot.bytes, std::move(done));
  } else {
    link->write_with_immediate(region, slot.remote, local, slot.bytes, immediate, company,
                               std::move(done));
  }
}

}  // namespace rcuda::p2p
