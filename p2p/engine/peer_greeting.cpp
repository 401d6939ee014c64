// The greeting: the two sides prove that they know the token, exchange offers, and make the staging
// memory and paths of the connection. Also checks which GPU memory of the peer this worker can map.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/base/log.h"
#include "common/base/units.h"
#include "p2p/engine/peer.h"
#include "p2p/link/host_identity.h"
#include "p2p/staging/arena.h"
#include "p2p/staging/device_region.h"

namespace rcuda::p2p {
namespace {

// Limits the inbox that a peer offers, because this side maps all pages of the inbox if the peer is
// on the same host.
constexpr uint64_t kMaxInboxBytes = 1ull << 30;

// Whether a peer's inbox may have this size. It must be a multiple of the alignment: the arena
// rounds the size of a chunk up, so a chunk as large as the inbox would otherwise never fit.
bool is_inbox_size(uint64_t bytes) {
  return bytes > 0 && bytes <= kMaxInboxBytes && bytes % Arena::kAlignment == 0;
}

bool text_ends(std::span<const char> text) {
  return std::find(text.begin(), text.end(), '\0') != text.end();
}

}  // namespace

Status Peer::on_challenge(const ChallengeMessage& message) {
  if (peer_nonce_) return peer_violation("the peer worker sent a second Challenge");
  peer_nonce_ = message.nonce;
  ProofMessage proof;
  proof.proof = make_proof(token_, connected_, own_nonce_, *peer_nonce_);
  return link_->mailbox.send(proof);
}

Status Peer::on_proof(const ProofMessage& message) {
  if (!peer_nonce_ || authenticated_) {
    return peer_violation(authenticated_ ? "the peer worker sent a second Proof"
                                         : "the peer worker sent Proof before Challenge");
  }
  if (!proof_holds(make_proof(token_, !connected_, *peer_nonce_, own_nonce_), message.proof)) {
    return {Code::kUnavailable,
            "the peer worker's Proof is wrong: that worker does not belong to this program, and "
            "gets no access to the program's memory"};
  }
  authenticated_ = true;
  due_ = Due::kOffer;
  return {};
}

Status Peer::send_offer() {
  RCUDA_RETURN_IF_ERROR(link_->make_receiving_side());
  OfferMessage offer;
  const Slice& inbox = link_->inbox;
  RCUDA_ASSIGN_OR_RETURN(const transport::Region region,
                         link_->link->expose(inbox.data(), inbox.bytes, inbox.fd(), inbox.offset)
                             .with_context("exposing this side's inbox for peer copies"));
  link_->regions.push_back(region.id);
  offer.inbox_region = static_cast<uint64_t>(region.id);
  offer.inbox_bytes = inbox.bytes;
  put_text(offer.host, host_identity());
  put_text(offer.name, environment_.options.host_name);
  offer.device_count =
      static_cast<uint32_t>(std::min<size_t>(environment_.devices.size(), kMaxDevices));
  for (uint32_t i = 0; i < offer.device_count; ++i) {
    DeviceOffer& device = offer.devices[i];
    put_text(device.uuid, environment_.devices[i].uuid);
    if (const DeviceBuffer& memory = link_->device_inbox[i]; memory.bytes() > 0) {
      const auto exposed = expose_device_memory(environment_.ops, *link_->link, static_cast<int>(i),
                                                memory.address(), memory.bytes(), For::kPeer);
      if (exposed) {
        link_->regions.push_back(exposed->id);
        device.inbox_region = static_cast<uint64_t>(exposed->id);
        device.inbox_bytes = memory.bytes();
      } else {
        RCUDA_INFO(
            "GPUDirect is unavailable on device %u, so copies from peer %u go through host "
            "memory: %s",
            i, id_, exposed.status().message().c_str());
      }
    }
    const auto& probe = environment_.probe_memory(static_cast<int>(i));
    if (probe) {
      device.has_probe = 1;
      device.probe = probe->handle;
    }
  }
  offered_ = true;
  return link_->mailbox.send(offer);
}

Status Peer::on_offer(const OfferMessage& message) {
  if (link_->open || !offered_) {
    return peer_violation(link_->open ? "the peer worker sent a second Offer"
                                      : "the peer worker sent Offer before its Proof");
  }
  bool good = message.device_count <= kMaxDevices && text_ends(message.host) &&
              text_ends(message.name) && message.inbox_region != 0 &&
              message.inbox_bytes >= EngineOptions::kLeastInboxBytes &&
              is_inbox_size(message.inbox_bytes);
  for (uint32_t i = 0; good && i < message.device_count; ++i) {
    const DeviceOffer& device = message.devices[i];
    good = text_ends(device.uuid) &&
           (device.inbox_region == 0 ? device.inbox_bytes == 0 : is_inbox_size(device.inbox_bytes));
  }
  if (!good) {
    return peer_violation("the peer worker sent an invalid Offer (" +
                          std::to_string(message.device_count) + " devices, inbox " +
                          std::to_string(message.inbox_region) + " of " +
                          std::to_string(message.inbox_bytes) +
                          " bytes): install the same build of rcuda on "
                          "both servers");
  }
  link_->offer = message;
  due_ = Due::kOpen;
  return {};
}

Status Peer::open_link() {
  const OfferMessage& message = link_->offer;
  RCUDA_RETURN_IF_ERROR(link_->make_sending_side());
  link_->open = true;
  RCUDA_INFO("peer-to-peer with peer %u on %s over %s: inboxes of %s (here) and %s (peer)", id_,
             get_text(message.name).c_str(), link_->link->medium(),
             bytes_text(link_->inbox.bytes).c_str(), bytes_text(message.inbox_bytes).c_str());
  RCUDA_RETURN_IF_ERROR(map_probe_memory());
  if (environment_.options.measure) {
    prober_ = std::make_unique<Prober>(environment_, *link_, mapped_);
    measure_ |= !std::exchange(environment_.measures, true);
  }
  if (environment_.options.on_decided) environment_.options.on_decided(id_);
  return send_legs();
}

// Tries to map the peer's probe memory for each device, and sends the results (Mappable). The peer
// needs them to plan copies to this side: this side can pull from memory that it can map.
Status Peer::map_probe_memory() {
  if (get_text(link_->offer.host) != host_identity()) return {};
  const size_t offered = std::min<size_t>(environment_.devices.size(), kMaxDevices);
  for (size_t own = 0; own < offered; ++own) {
    if (environment_.probe_memory(static_cast<int>(own))) {
      link_->unanswered += link_->offer.device_count;
    }
  }
  for (uint32_t theirs = 0; theirs < link_->offer.device_count; ++theirs) {
    if (link_->offer.devices[theirs].has_probe == 0) continue;
    ExportedMemory memory;
    memory.handle = link_->offer.devices[theirs].probe;
    for (size_t own = 0; own < offered; ++own) {
      MappableMessage message;
      message.sender_device = theirs;
      message.device = static_cast<uint32_t>(own);
      const auto mapped = environment_.ops.open(static_cast<int>(own), memory);
      if (mapped && mapped->bytes >= Prober::kLargestBytes) {
        mapped_.push_back({static_cast<int>(own), static_cast<int>(theirs), mapped->base});
        message.mappable = 1;
      } else {
        if (mapped) environment_.ops.close(static_cast<int>(own), mapped->base);
        RCUDA_INFO(
            "memory of peer %u's device %u cannot be mapped on device %zu, so copies between these "
            "devices go through host memory: %s",
            id_, theirs, own,
            mapped ? "its probe memory is too small" : mapped.status().message().c_str());
      }
      RCUDA_RETURN_IF_ERROR(link_->mailbox.send(message));
    }
  }
  return {};
}

Status Peer::on_mappable(const MappableMessage& message) {
  const int own = static_cast<int>(message.sender_device);
  if (!environment_.valid_device(own) || message.device >= link_->offer.device_count) {
    return peer_violation("the peer worker sent Mappable for device " +
                          std::to_string(message.sender_device) + " of this worker and device " +
                          std::to_string(message.device) +
                          " of the peer, one of which does not exist");
  }
  if (link_->unanswered == 0) {
    return peer_violation(
        "the peer worker sent more Mappable messages than this side has "
        "offered pairs of devices");
  }
  --link_->unanswered;
  if (message.mappable != 0) {
    PeerLink::Pair& pair = link_->pair(own, static_cast<int>(message.device));
    pair.ipc = true;
    pair.planner.reset();
  }
  return {};
}

}  // namespace rcuda::p2p
