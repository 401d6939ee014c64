#include "client/session/shadow_regions.h"

#include <algorithm>
#include <iterator>

#include "common/wire/frame.h"

namespace rcuda::client {

void ShadowRegions::add(transport::Link& link, uint64_t address, uint64_t bytes,
                        transport::RegionId region) {
  if (region == transport::RegionId::kNone) return;
  auto shadow = std::make_shared<Shadow>();
  shadow->bytes = bytes;
  shadow->region = region;
  link.lend(reinterpret_cast<const void*>(address), bytes);
  MutexLock lock(mutex_);
  shadows_[address] = std::move(shadow);
}

void ShadowRegions::remove(transport::Link& link, uint64_t address) {
  std::shared_ptr<Shadow> shadow;
  {
    MutexLock lock(mutex_);
    auto node = shadows_.extract(address);
    if (!node) return;
    shadow = std::move(node.mapped());
  }
  for (uint32_t writes = shadow->writes.load(); writes != 0; writes = shadow->writes.load()) {
    shadow->writes.wait(writes);
  }
  link.take_back(reinterpret_cast<const void*>(address), shadow->bytes);
}

std::shared_ptr<ShadowRegions::Shadow> ShadowRegions::begin_writes(uint64_t address, uint64_t bytes,
                                                                   uint64_t* base) {
  MutexLock lock(mutex_);
  const auto after = shadows_.upper_bound(address);
  if (after == shadows_.begin()) return nullptr;
  const auto& [begin, shadow] = *std::prev(after);
  const uint64_t offset = address - begin;
  if (offset >= shadow->bytes || bytes > shadow->bytes - offset) return nullptr;
  shadow->writes += static_cast<uint32_t>(wire::parts_of(bytes));
  *base = begin;
  return shadow;
}

ShadowRegions::Reserved ShadowRegions::reserve(uint64_t address, uint64_t bytes) {
  Reserved reserved{nullptr, 0, address, bytes, 0};
  if (sending_.load(std::memory_order_relaxed) + bytes > kMostBytes) return reserved;
  reserved.shadow = begin_writes(address, bytes, &reserved.base);
  if (!reserved.shadow) return reserved;
  sending_.fetch_add(bytes, std::memory_order_relaxed);
  reserved.first = take_immediates(wire::parts_of(bytes));
  return reserved;
}

void ShadowRegions::write(transport::Link& link, const Reserved& reserved,
                          transport::Company company) {
  const auto& [shadow, base, address, bytes, first] = reserved;
  const uint64_t part = wire::part_bytes_of(bytes);
  for (uint64_t at = 0; at < bytes; at += part) {
    const uint64_t length = std::min(part, bytes - at);
    const auto sent = [this, shadow = shadow, length](const Status&) {
      sending_.fetch_sub(length, std::memory_order_relaxed);
      if (--shadow->writes == 0) shadow->writes.notify_all();
    };
    link.write_with_immediate(shadow->region, address - base + at,
                              reinterpret_cast<const void*>(address + at), length,
                              wire::immediate_of(first, at / part), company, sent);
  }
}

uint32_t ShadowRegions::send(transport::Link& link, uint64_t address, uint64_t bytes,
                             transport::Company company) {
  const Reserved reserved = reserve(address, bytes);
  if (reserved.shadow) write(link, reserved, company);
  return reserved.first;
}

ShadowRegions::Later ShadowRegions::send_later(transport::Link& link, uint64_t address,
                                               uint64_t bytes, transport::Company company) {
  const Reserved reserved = reserve(address, bytes);
  if (!reserved.shadow) return {};
  return {reserved.first, [this, &link, reserved, company] { write(link, reserved, company); }};
}

uint32_t ShadowRegions::take_immediates(uint64_t count) {
  return wire::immediate_of(1, next_.fetch_add(count, std::memory_order_relaxed));
}

}  // namespace rcuda::client
