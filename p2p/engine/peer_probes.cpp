// The probes of a connection: whether one worker can map the other's GPU memory, and whether
// GPUDirect moves bytes from GPU to GPU. For GPUDirect a pattern is written and checked at its
// destination, because a successful registration proves nothing.
#include <algorithm>
#include <cstring>

#include "common/base/log.h"
#include "p2p/engine/peer.h"
#include "p2p/link/host_identity.h"

namespace rcuda::p2p {
namespace {

// In the scratch page after the outbox: this side's pattern is at offset 0, the one it checks for
// the peer at this offset.
constexpr size_t kCheckScratch = 64;

}  // namespace

Status Peer::start_probes() {
  // If this side can map the peer's memory, it can pull from the peer. The peer plans the copies to
  // this side, so it gets the result.
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
            "peer %u's device %u cannot be mapped for device %zu: %s", id_, theirs, own,
            mapped ? "its memory is smaller than it must be" : mapped.status().message().c_str());
        message.proven = Proven::kNoIpc;
      }
      RCUDA_RETURN_IF_ERROR(link_->mailbox.send(message));
    }
  }
  for (size_t own = 0; own < link_->device_outbox.size(); ++own) {
    if (link_->device_outbox[own].bytes() == 0 || link_->outbox.bytes == 0) continue;
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

// Copies a pattern between the scratch page and a GPU. The first call begins; then returns whether
// the copy has ended.
Result<bool> Peer::copy_pattern(int device, Lane lane, uint64_t destination, uint64_t source,
                                Ticket& ticket) {
  if (ticket != 0) return environment_.lanes.finished(device, lane, ticket);
  CopyBox box;
  box.destination = destination;
  box.source = source;
  box.width_bytes = sizeof(uint64_t);
  const auto begun = environment_.lanes.copy(device, lane, {&box, 1}, box.width_bytes);
  if (!begun) return begun.status();
  ticket = *begun;
  return false;
}

// One probe at a time: fill the start of the GPU's outbox from host memory, let the NIC write it to
// the peer, ask the peer to check it.
Status Peer::advance_probes(bool& moved) {
  while (!probes_.empty() && probes_.front().stage == GpudirectProbe::Stage::kOver) {
    probes_.pop_front();
  }
  link_->probing = !probes_.empty() || unmapped_ > 0;
  if (!probes_.empty() && probes_.front().stage == GpudirectProbe::Stage::kFilling) {
    GpudirectProbe& probe = probes_.front();
    const DeviceAddress outbox = link_->device_outbox[static_cast<size_t>(probe.device)].address();
    std::byte* const scratch = link_->outbox.data() + link_->outbox_arena.bytes();
    if (probe.ticket == 0) {
      std::memcpy(scratch, &probe.pattern, sizeof probe.pattern);
      moved = true;
    }
    const auto filled = copy_pattern(probe.device, Lane::kIn, outbox,
                                     reinterpret_cast<uint64_t>(scratch), probe.ticket);
    if (!filled) return filled.status();
    if (*filled) {
      moved = true;
      probe.stage = GpudirectProbe::Stage::kTransferring;
      const auto region = transport::RegionId{
          link_->offer.devices[static_cast<size_t>(probe.peer_device)].inbox_region};
      link_->link->write(region, 0, reinterpret_cast<const void*>(outbox), sizeof probe.pattern,
                         link_->begin_transfer(kProbeTransfer, 0));
    }
  }
  while (!checks_.empty()) {
    ProbeCheck& check = checks_.front();
    auto* const scratch = reinterpret_cast<uint64_t*>(link_->outbox.data() +
                                                      link_->outbox_arena.bytes() + kCheckScratch);
    if (check.ticket == 0) {
      *scratch = 0;
      moved = true;
    }
    const auto read = copy_pattern(static_cast<int>(check.probe.device), Lane::kOut,
                                   reinterpret_cast<uint64_t>(scratch),
                                   link_->device_inbox[check.probe.device].address(), check.ticket);
    if (!read) return read.status();
    if (!*read) break;
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
      link_->device_inbox[message.device].bytes() == 0 || link_->outbox.bytes == 0 ||
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
      link_->pair(own, theirs).ipc = true;
      link_->pair(own, theirs).planner.reset();
    }
    return {};
  }
  if (probes_.empty() || probes_.front().stage != GpudirectProbe::Stage::kAsked ||
      probes_.front().device != own || probes_.front().peer_device != theirs) {
    return {Code::kProtocol, "Probed without a probe"};
  }
  probes_.front().stage = GpudirectProbe::Stage::kOver;
  if (message.proven == Proven::kGpudirect) {
    link_->make_device_path(own, theirs);
    if (prober_) prober_->add_gpudirect(own, theirs);
    RCUDA_INFO("GPUDirect from device %d to peer %u's device %d: proven by a probe", own, id_,
               theirs);
  } else {
    RCUDA_WARN(
        "GPUDirect from device %d to peer %u's device %d was accepted but its bytes did "
        "not arrive; host staging is used",
        own, id_, theirs);
  }
  return {};
}

}  // namespace rcuda::p2p
