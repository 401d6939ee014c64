#include "p2p/link/peer_link.h"

#include <algorithm>

#include "common/base/log.h"
#include "p2p/staging/device_region.h"

namespace rcuda::p2p {
namespace {

// The most chunks of one peer whose bytes have begun to arrive. An inbox of 32 MB has this number
// of slots (Arena::kAlignment).
constexpr size_t kMostBegun = 1u << 16;

}  // namespace

Status Arrivals::add(uint32_t immediate, uint64_t bytes) {
  bytes_[immediate] += bytes;
  if (bytes_.size() <= kMostBegun) return {};
  return peer_violation("the peer worker sent more than " + std::to_string(kMostBegun) +
                        " chunks that have not been copied out of the inbox");
}

Result<bool> Arrivals::complete(uint32_t immediate, uint64_t bytes) {
  const auto found = bytes_.find(immediate);
  if (found == bytes_.end() || found->second < bytes) return false;
  const bool all = found->second == bytes;
  bytes_.erase(found);
  return all ? Result<bool>(true)
             : Status(Code::kProtocol,
                      "the peer worker sent more than the announced " + std::to_string(bytes) +
                          " bytes of the chunk with immediate " + std::to_string(immediate));
}

// Threads of the Link and adapters use the buffers until unexpose() returns. close() comes first,
// because unexpose() then does not wait for the peer.
PeerLink::~PeerLink() {
  link->close();
  if (outbox.buffer) link->take_back(outbox.data(), outbox.bytes);
  for (const transport::RegionId region : regions) (void)link->unexpose(region);
}

Status PeerLink::make_receiving_side() {
  const transport::MediumTraits& medium = link->traits();
  StagingArena& arena =
      medium.shares_pages ? environment.mappable_staging : environment.other_staging;
  RCUDA_ASSIGN_OR_RETURN(inbox, arena.take(environment.options.inbox_bytes)
                                    .with_context("allocating an inbox for peer copies"));

  device_inbox.resize(environment.devices.size());
  device_outbox.resize(environment.devices.size());
  device_outbox_arena.resize(environment.devices.size());
  for (size_t device = 0; device < environment.devices.size(); ++device) {
    if (!medium.has_adapter || !environment.ops.prove_gpudirect(static_cast<int>(device), *link)) {
      continue;
    }
    const uint64_t size = environment.options.device_inbox_bytes;
    Result<DeviceBuffer> in = DeviceBuffer::create(environment.ops, static_cast<int>(device), size);
    Result<DeviceBuffer> out =
        DeviceBuffer::create(environment.ops, static_cast<int>(device), size);
    if (!in || !out) {
      RCUDA_INFO(
          "no GPU memory for GPUDirect staging on device %zu, so copies with peer %u use host "
          "memory: %s",
          device, id, (in ? out : in).status().message().c_str());
      continue;
    }
    // Register the outbox once, for all copies. Without a registration the Link would copy with the
    // CPU instead of the adapter.
    const auto exposed = expose_device_memory(environment.ops, *link, static_cast<int>(device),
                                              out->address(), size, For::kThisSide);
    if (!exposed) {
      RCUDA_INFO(
          "GPUDirect is unavailable on device %zu, so copies with peer %u go through host "
          "memory: %s",
          device, id, exposed.status().message().c_str());
      continue;
    }
    regions.push_back(exposed->id);
    device_inbox[device] = *std::move(in);
    device_outbox[device] = *std::move(out);
    device_outbox_arena[device] = Arena(size);
  }
  return {};
}

Status PeerLink::make_sending_side() {
  const transport::MediumTraits& medium = link->traits();
  // With copies_by_cpu, CPUs read and write the staging memory (Arena::Fit).
  const auto fit = medium.copies_by_cpu ? Arena::Fit::kNext : Arena::Fit::kFirst;
  peer_inbox = Arena(offer.inbox_bytes, fit);
  peer_device_inbox.clear();
  for (uint32_t device = 0; device < offer.device_count; ++device) {
    peer_device_inbox.emplace_back(offer.devices[device].inbox_bytes);
  }
  peer_legs.resize(offer.device_count);
  const transport::RegionId region{offer.inbox_region};
  if (medium.shares_pages) {
    RCUDA_ASSIGN_OR_RETURN(mapped,
                           MappedInbox::create(environment.ops, *link, region, offer.inbox_bytes)
                               .with_context("mapping the peer worker's inbox"));
    host_path = Path::shared(mapped->address(), peer_inbox);
    return {};
  }
  RCUDA_ASSIGN_OR_RETURN(Slice slice, environment.other_staging.take(offer.inbox_bytes)
                                          .with_context("allocating an outbox for peer copies"));
  if (medium.has_adapter) {
    // Register the outbox once, for all copies. Otherwise the Link would register or copy every
    // chunk.
    RCUDA_ASSIGN_OR_RETURN(const transport::Region exposed,
                           link->expose_device(slice.data(), slice.bytes, {.for_peer = false})
                               .with_context("registering the outbox for peer copies"));
    regions.push_back(exposed.id);
  }
  outbox = std::move(slice);
  // A slot is released when the peer has consumed its chunk. The peer then has all bytes of the
  // chunk, so the Link never reads a slot that a later chunk has changed.
  link->lend(outbox.data(), outbox.bytes);
  outbox_arena = Arena(outbox.bytes, fit);
  host_path =
      Path::wire(*link, Where::kHostInbox, outbox.address(), outbox_arena, region, peer_inbox);
  for (size_t own = 0; own < device_outbox.size(); ++own) {
    for (uint32_t theirs = 0; theirs < offer.device_count; ++theirs) {
      const transport::RegionId inbox_there{offer.devices[theirs].inbox_region};
      if (device_outbox[own].bytes() == 0 || inbox_there == transport::RegionId::kNone) continue;
      pair(static_cast<int>(own), static_cast<int>(theirs)).device_path =
          Path::wire(*link, Where::kDeviceInbox, device_outbox[own].address(),
                     device_outbox_arena[own], inbox_there, peer_device_inbox[theirs]);
    }
  }
  return {};
}

Capabilities PeerLink::capabilities(int device, int peer_device) {
  const Route route = route_of(link->traits());
  const Pair& both = pair(device, peer_device);
  Capabilities can;
  can.shm = route == Route::kShm;
  can.tcp = route == Route::kTcp;
  can.verbs = route == Route::kVerbs;
  can.gpudirect = both.device_path.has_value();
  can.ipc = both.ipc;
  return can;
}

PairModel PeerLink::model(int device, int peer_device) {
  const DeviceLegs& own = environment.legs[static_cast<size_t>(device)];
  const DeviceLegs& theirs = peer_legs[static_cast<size_t>(peer_device)];
  PairModel model;
  model.copy_out = own.copy_out;
  model.device_out = own.within;
  model.registration = own.registration;
  model.copy_in = theirs.copy_in;
  model.device_in = theirs.within;
  (route_of(link->traits()) == Route::kTcp ? model.wire_tcp : model.wire_verbs) = wire;
  model.gpudirect = pair(device, peer_device).gpudirect_leg;
  model.ipc = pair(device, peer_device).ipc_leg;
  if (!message.empty()) model.message_us = message.time_us(0);
  return model;
}

Planner& PeerLink::planner(int device, int peer_device) {
  std::optional<Planner>& planner = pair(device, peer_device).planner;
  if (planner) return *planner;
  PlannerOptions options = environment.options.planner;
  if (host_path) options.staging_bytes = std::min(options.staging_bytes, host_path->bytes);
  return planner.emplace(options, capabilities(device, peer_device), model(device, peer_device));
}

transport::TransferDone PeerLink::begin_transfer(uint64_t copy, uint64_t number) {
  ++transferring;
  const Transfer transfer{id, copy, number, {}};
  return [queue = environment.transfers, transfer](const Status& status) {
    Transfer finished = transfer;
    finished.status = status;
    queue->push(std::move(finished));
  };
}

void PeerLink::refresh_models() {
  for (auto& [devices, both] : pairs) {
    if (both.planner) both.planner->set_model(model(devices.first, devices.second));
  }
}

}  // namespace rcuda::p2p
