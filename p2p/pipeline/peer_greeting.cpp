// How a peer becomes usable: greeting, offers, probes of what works, and the legs both ends
// measured.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "common/base/log.h"
#include "p2p/paths/device_region.h"
#include "p2p/pipeline/peer.h"

namespace rcuda::p2p {
namespace {

// Within the outbox's scratch page: the pattern this side sends, and the one it checks for the
// peer.
constexpr size_t kCheckScratch = 64;

// Identifies the running kernel: two processes that read the same text share a host.
std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string identity;
  std::getline(file, identity);
  return identity;
}

bool text_ends(std::span<const char> text) {
  return std::find(text.begin(), text.end(), '\0') != text.end();
}

}  // namespace

Status Peer::on_challenge(const ChallengeMessage& message) {
  if (peer_nonce_) return {Code::kProtocol, "a second Challenge"};
  if (message.version != kPeerProtocolVersion) {
    return {Code::kProtocol, "the peer's engine speaks version " + std::to_string(message.version) +
                                 ", this one " + std::to_string(kPeerProtocolVersion) +
                                 ": install the same release on all servers"};
  }
  peer_nonce_ = message.nonce;
  ProofMessage proof;
  proof.proof = make_proof(token_, connected_, own_nonce_, *peer_nonce_);
  return link_->mailbox.send(proof);
}

Status Peer::on_proof(const ProofMessage& message) {
  if (!peer_nonce_ || authenticated_) return {Code::kProtocol, "a Proof out of place"};
  if (!proof_holds(make_proof(token_, !connected_, *peer_nonce_, own_nonce_), message.proof)) {
    return {Code::kUnavailable,
            "a worker that this session did not introduce asked for its memory"};
  }
  authenticated_ = true;
  due_ = Due::kOffer;
  return {};
}

Status Peer::send_offer() {
  RCUDA_RETURN_IF_ERROR(link_->make_inbox());
  OfferMessage offer;
  const auto region =
      link_->link->expose(link_->inbox.data(), link_->inbox.bytes(), link_->inbox.fd());
  if (!region) return Status(region.status()).with_context("exposing the peer-to-peer inbox");
  link_->regions.push_back(region->id);
  offer.inbox_region = static_cast<uint64_t>(region->id);
  offer.inbox_bytes = link_->inbox.bytes();
  put_text(offer.host, host_identity());
  put_text(offer.name, environment_.options.host_name);
  offer.device_count =
      static_cast<uint32_t>(std::min<size_t>(environment_.devices.size(), kMaxDevices));
  for (uint32_t i = 0; i < offer.device_count; ++i) {
    DeviceOffer& device = offer.devices[i];
    put_text(device.uuid, environment_.devices[i].uuid);
    if (const DeviceBuffer& inbox = link_->device_inbox[i]; inbox.bytes() > 0) {
      const auto exposed = expose_device_memory(environment_.ops, *link_->link, static_cast<int>(i),
                                                inbox.address(), inbox.bytes(), For::kPeer);
      if (exposed) {
        link_->regions.push_back(exposed->id);
        device.inbox_region = static_cast<uint64_t>(exposed->id);
        device.inbox_bytes = inbox.bytes();
      } else {
        RCUDA_INFO("GPUDirect is not to be had on device %u: %s", i,
                   exposed.status().message().c_str());
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
  if (link_->open || !offered_) return {Code::kProtocol, "an Offer out of place"};
  bool good = message.device_count <= kMaxDevices && text_ends(message.host) &&
              text_ends(message.name) && message.inbox_region != 0 &&
              message.inbox_bytes >= EngineOptions::kLeastInboxBytes;
  for (uint32_t i = 0; good && i < message.device_count; ++i) {
    good = text_ends(message.devices[i].uuid);
  }
  if (!good) return {Code::kProtocol, "an Offer that cannot be"};
  link_->offer = message;
  due_ = Due::kOpen;
  return {};
}

Status Peer::open_link() {
  const OfferMessage& message = link_->offer;
  RCUDA_RETURN_IF_ERROR(link_->make_host_path());
  link_->open = true;
  RCUDA_INFO("peer-to-peer with worker %u on %s over %s: inboxes of %s here, %s there", id_,
             get_text(message.name).c_str(), link_->link->medium(),
             bytes_text(link_->inbox.bytes()).c_str(), bytes_text(message.inbox_bytes).c_str());
  RCUDA_RETURN_IF_ERROR(start_probes());
  if (environment_.options.measure)
    prober_ = std::make_unique<Prober>(environment_, *link_, mapped_);
  if (environment_.options.on_settled) environment_.options.on_settled(id_);
  return send_legs();
}

Status Peer::start_probes() {
  // Mapping the peer's memory proves that it can pull from us nothing, but that we can pull from
  // it: the peer, who plans its copies to us, is told.
  const bool same_host = get_text(link_->offer.host) == host_identity();
  const size_t offered = std::min<size_t>(environment_.devices.size(), kMaxDevices);
  for (size_t own = 0; same_host && own < offered; ++own) {
    if (environment_.probe_memory(static_cast<int>(own))) {
      unmapped_ += link_->offer.device_count;
    }
  }
  for (uint32_t theirs = 0; same_host && theirs < link_->offer.device_count; ++theirs) {
    if (link_->offer.devices[theirs].has_probe == 0) continue;
    ExportedMemory memory;
    memory.handle = link_->offer.devices[theirs].probe;
    for (size_t own = 0; own < offered; ++own) {
      ProbedMessage message;
      message.sender_device = theirs;
      message.device = static_cast<uint32_t>(own);
      const auto mapped = environment_.ops.open(static_cast<int>(own), memory);
      if (mapped && mapped->bytes >= Prober::kLargestBytes) {
        mapped_.push_back({static_cast<int>(own), static_cast<int>(theirs), mapped->base});
        message.proven = Proven::kIpc;
      } else {
        if (mapped) environment_.ops.close(static_cast<int>(own), mapped->base);
        RCUDA_INFO(
            "worker %u's device %u cannot be mapped for device %zu: %s", id_, theirs, own,
            mapped ? "its memory is smaller than it must be" : mapped.status().message().c_str());
        message.proven = Proven::kNoIpc;
      }
      RCUDA_RETURN_IF_ERROR(link_->mailbox.send(message));
    }
  }
  for (size_t own = 0; own < link_->device_outbox.size(); ++own) {
    if (link_->device_outbox[own].bytes() == 0 || link_->outbox.bytes() == 0) continue;
    for (uint32_t theirs = 0; theirs < link_->offer.device_count; ++theirs) {
      if (link_->offer.devices[theirs].inbox_region == 0) continue;
      GpudirectProbe probe;
      probe.device = static_cast<int>(own);
      probe.peer_device = static_cast<int>(theirs);
      uint64_t random = 0;
      std::memcpy(&random, own_nonce_.data(), sizeof random);
      probe.pattern = random * (own * kMaxDevices + theirs + 1) | 1;
      probes_.push_back(probe);
    }
  }
  link_->probing = !probes_.empty() || unmapped_ > 0;
  return {};
}

// One probe at a time: fill the start of the GPU's outbox from host memory, let the NIC carry it,
// ask the peer to look.
Status Peer::advance_probes(bool& moved) {
  while (!probes_.empty() && probes_.front().stage == GpudirectProbe::Stage::kOver) {
    probes_.pop_front();
  }
  link_->probing = !probes_.empty() || unmapped_ > 0;
  if (!probes_.empty() && probes_.front().stage == GpudirectProbe::Stage::kFilling) {
    GpudirectProbe& probe = probes_.front();
    const DeviceBuffer& outbox = link_->device_outbox[static_cast<size_t>(probe.device)];
    if (probe.ticket == 0) {
      std::byte* scratch = link_->outbox.data() + link_->outbox_arena.bytes();
      std::memcpy(scratch, &probe.pattern, sizeof probe.pattern);
      CopyBox box;
      box.destination = outbox.address();
      box.source = reinterpret_cast<uint64_t>(scratch);
      box.width_bytes = sizeof probe.pattern;
      const auto ticket =
          environment_.lanes.copy(probe.device, Lane::kIn, {&box, 1}, box.width_bytes);
      if (!ticket) return ticket.status();
      probe.ticket = *ticket;
      moved = true;
    } else {
      const auto finished = environment_.lanes.finished(probe.device, Lane::kIn, probe.ticket);
      if (!finished) return finished.status();
      if (*finished) {
        moved = true;
        probe.stage = GpudirectProbe::Stage::kShipping;
        const auto region = transport::RegionId{
            link_->offer.devices[static_cast<size_t>(probe.peer_device)].inbox_region};
        link_->link->write(region, 0, reinterpret_cast<const void*>(outbox.address()),
                           sizeof probe.pattern, link_->begin_shipment(kProbeShipment, 0));
      }
    }
  }
  while (!checks_.empty()) {
    ProbeCheck& check = checks_.front();
    const int device = static_cast<int>(check.probe.device);
    auto* scratch = reinterpret_cast<uint64_t*>(link_->outbox.data() + link_->outbox_arena.bytes() +
                                                kCheckScratch);
    if (check.ticket == 0) {
      CopyBox box;
      box.destination = reinterpret_cast<uint64_t>(scratch);
      box.source = link_->device_inbox[check.probe.device].address();
      box.width_bytes = sizeof *scratch;
      *scratch = 0;
      const auto ticket = environment_.lanes.copy(device, Lane::kOut, {&box, 1}, box.width_bytes);
      if (!ticket) return ticket.status();
      check.ticket = *ticket;
      moved = true;
      break;
    }
    const auto finished = environment_.lanes.finished(device, Lane::kOut, check.ticket);
    if (!finished) return finished.status();
    if (!*finished) break;
    moved = true;
    ProbedMessage message;
    message.sender_device = check.probe.sender_device;
    message.device = check.probe.device;
    if (*scratch == check.probe.pattern) message.proven = Proven::kGpudirect;
    checks_.pop_front();
    RCUDA_RETURN_IF_ERROR(link_->mailbox.send(message));
  }
  return {};
}

Status Peer::on_probe(const ProbeMessage& message) {
  if (message.device >= link_->device_inbox.size() ||
      link_->device_inbox[message.device].bytes() == 0 || link_->outbox.bytes() == 0 ||
      checks_.size() > kMaxDevices) {
    return {Code::kProtocol, "a Probe of memory that was not offered"};
  }
  checks_.push_back({message, 0});
  return {};
}

Status Peer::on_probed(const ProbedMessage& message) {
  const int own = static_cast<int>(message.sender_device);
  if (!environment_.valid_device(own) || message.device >= link_->offer.device_count) {
    return {Code::kProtocol, "a probe of devices that do not exist"};
  }
  const int theirs = static_cast<int>(message.device);
  if (message.proven == Proven::kIpc || message.proven == Proven::kNoIpc) {
    if (unmapped_ == 0) return {Code::kProtocol, "an answer about memory that was not offered"};
    --unmapped_;
    if (message.proven == Proven::kIpc) {
      link_->ipc[{own, theirs}] = true;
      link_->planners.erase({own, theirs});
    }
    return {};
  }
  if (probes_.empty() || probes_.front().stage != GpudirectProbe::Stage::kAsked ||
      probes_.front().device != own || probes_.front().peer_device != theirs) {
    return {Code::kProtocol, "the answer to a probe that was not asked"};
  }
  probes_.front().stage = GpudirectProbe::Stage::kOver;
  if (message.proven == Proven::kGpudirect) {
    link_->make_device_path(own, theirs);
    if (prober_) prober_->add_gpudirect(own, theirs);
    RCUDA_INFO("GPUDirect from device %d to worker %u's device %d: proven by a probe", own, id_,
               theirs);
  } else {
    RCUDA_WARN(
        "GPUDirect from device %d to worker %u's device %d was accepted but its bytes did "
        "not arrive; host staging is used",
        own, id_, theirs);
  }
  return {};
}

Status Peer::send_leg(const LegKey& key, const LegModel& leg) {
  if (leg.knots().size() > kMaxLegKnots) return {};
  LegMessage message;
  message.knot_count = static_cast<uint32_t>(leg.knots().size());
  put_text(message.leg, key.kind);
  put_text(message.gpu, key.gpu);
  put_text(message.peer, key.peer);
  message.delay_us = leg.delay_us(0);
  message.disturbed = environment_.measured(key) ? 0 : 1;
  for (size_t i = 0; i < leg.knots().size(); ++i) {
    message.bytes[i] = leg.knots()[i].bytes;
    message.us[i] = leg.knots()[i].us;
  }
  return link_->mailbox.send(message);
}

// What the peer's planner needs of this side: its devices' own legs, and mapped copies it pulls.
Status Peer::send_legs() {
  const auto own = [&](const std::string& gpu) {
    return std::any_of(environment_.devices.begin(), environment_.devices.end(),
                       [&](const EngineDevice& device) { return device.uuid == gpu; });
  };
  for (const auto& [key, leg] : environment_.measurements.legs()) {
    if (!key.nic.empty()) continue;
    const bool of_device = own(key.gpu) && key.peer.empty();
    const bool pulled = key.kind == "ipc" && own(key.peer);
    if (of_device || pulled) RCUDA_RETURN_IF_ERROR(send_leg(key, leg));
  }
  return {};
}

Status Peer::on_leg(const LegMessage& message) {
  if (!text_ends(message.leg) || !text_ends(message.gpu) || !text_ends(message.peer) ||
      message.knot_count > kMaxLegKnots || message.disturbed > 1) {
    return {Code::kProtocol, "a Leg that cannot be"};
  }
  const std::string kind = get_text(message.leg);
  const LegKey key{kind, get_text(message.gpu), "", get_text(message.peer)};
  const std::string& owner = kind == "ipc" ? key.peer : key.gpu;
  const auto devices = std::span(link_->offer.devices).first(link_->offer.device_count);
  const bool theirs = std::any_of(devices.begin(), devices.end(), [&](const DeviceOffer& device) {
    return get_text(device.uuid) == owner;
  });
  const bool known =
      kind == "copy_out" || kind == "copy_in" || kind == "device_copy" || kind == "ipc";
  if (!theirs || !known) return {Code::kProtocol, "a Leg that is not the peer's to measure"};
  std::vector<LegModel::Knot> knots;
  for (uint32_t i = 0; i < message.knot_count; ++i) {
    knots.push_back({message.bytes[i], message.us[i]});
  }
  Result<LegModel> leg = LegModel::from_knots(std::move(knots), message.delay_us);
  if (!leg) return {Code::kProtocol, leg.status().context()};
  const LegModel* const before = environment_.measurements.find(key);
  if (before == nullptr || *before != *leg || !environment_.measured(key)) {
    environment_.keep(key, *std::move(leg), message.disturbed != 0);
  }
  link_->refresh_models();
  return {};
}

}  // namespace rcuda::p2p
