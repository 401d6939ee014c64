// PeerLink: the parts of one connection that its sender and its receiver both use: the Link, its
// mailbox, staging memory, paths and planners. Made when a peer is attached, gone when it is lost
// and nothing is under way any more. Used by the engine's thread alone.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/transport/link.h"
#include "p2p/paths/path.h"
#include "p2p/pipeline/environment.h"
#include "p2p/pipeline/mailbox.h"
#include "p2p/pipeline/messages.h"
#include "p2p/planner/planner.h"

namespace rcuda::p2p {

// How much has come of the chunks that tell of their arrival themselves. A chunk's bytes may come
// before its announcement.
class Arrivals {
 public:
  // kProtocol: more chunks begun than a peer may have under way.
  Status add(uint32_t immediate, uint64_t bytes);
  // Whether all of it is there; that is said once. kProtocol: more is there than there should be.
  Result<bool> complete(uint32_t immediate, uint64_t bytes);

 private:
  std::map<uint32_t, uint64_t> bytes_;
};

struct PeerLink {
  PeerLink(Environment& shared, PeerId peer, uint64_t link_generation,
           std::unique_ptr<transport::Link> connection)
      : environment(shared),
        id(peer),
        generation(link_generation),
        link(std::move(connection)),
        mailbox(*link) {}
  ~PeerLink();

  // The memory peers write and this side reads. Fails as registration does.
  Status make_inbox();
  // What this side needs to write the peer's inbox, from its checked offer.
  Status make_host_path();
  // Once a probe transfer from `device` to `peer_device` arrived.
  void make_device_path(int device, int peer_device);

  Path* device_path(int device, int peer_device) const {
    const auto found = device_paths.find({device, peer_device});
    return found == device_paths.end() ? nullptr : found->second.get();
  }
  // The planner of one pair of GPUs, made when first asked for.
  Planner& planner(int device, int peer_device);
  Capabilities capabilities(int device, int peer_device) const;
  // Counts a transfer that is about to start; its end comes to Peer::shipped under these two.
  transport::TransferDone begin_shipment(uint64_t copy, uint64_t number);
  // Models from what has been measured by now.
  void refresh_models();
  PairKey pair_key(int device, int peer_device) const;

  Environment& environment;
  const PeerId id;
  const uint64_t generation;
  // Destroyed last: the mapping of the peer's inbox and the regions are its own.
  std::unique_ptr<transport::Link> link;
  Mailbox mailbox;
  bool open = false;      // proofs and offers were exchanged
  bool probing = false;   // what works, GPUDirect or mapping, is not known yet: no copy is planned
  uint32_t shipping = 0;  // transfers of this side that have not ended
  OfferMessage offer;     // the peer's, checked
  Arrivals arrivals;      // of chunks of the peer's
  uint32_t last_immediate = 0;  // given to chunks of this side's, in turn

  Slice inbox;                             // written by the peer
  Slice outbox;                            // wire media; with kScratchBytes behind it
  MappedInbox mapped;                      // shm: the peer's inbox
  std::vector<DeviceBuffer> device_inbox;  // by device; empty buffers where there is none
  std::vector<DeviceBuffer> device_outbox;
  std::vector<transport::RegionId> regions;  // of all of those, but for `mapped`

  Arena peer_inbox;
  Arena outbox_arena;
  std::vector<Arena> peer_device_inbox;
  std::vector<Arena> device_outbox_arena;
  std::unique_ptr<Path> host_path;
  std::map<std::pair<int, int>, std::unique_ptr<Path>> device_paths;
  std::map<std::pair<int, int>, bool> ipc;  // (own device, peer's device): the peer can map ours
  std::map<std::pair<int, int>, Planner> planners;
};

// Extra bytes at the end of an outbox, for probes and echoes.
inline constexpr uint64_t kScratchBytes = 4096;

}  // namespace rcuda::p2p
