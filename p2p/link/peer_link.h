// PeerLink: the parts of one connection that its sender and its receiver both use: the Link, its
// mailbox, staging memory, paths and planners. Made when a peer is attached; destroyed when the
// peer is lost and nothing is in progress any more. Used only by the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/transport/link.h"
#include "p2p/link/environment.h"
#include "p2p/link/mailbox.h"
#include "p2p/link/messages.h"
#include "p2p/plan/planner.h"
#include "p2p/staging/path.h"

namespace rcuda::p2p {

// Counts for each immediate how many bytes of its chunk have arrived. Bytes may arrive before the
// chunk's announcement.
class Arrivals {
 public:
  // kProtocol: more chunks have begun to arrive than a peer may have in flight.
  Status add(uint32_t immediate, uint64_t bytes);
  // Returns true if all bytes have arrived, and then forgets the immediate. kProtocol: more bytes
  // have arrived than expected.
  Result<bool> complete(uint32_t immediate, uint64_t bytes);

 private:
  std::map<uint32_t, uint64_t> bytes_;
};

struct PeerLink {
  PeerLink(Environment& shared, PeerId peer, std::unique_ptr<transport::Link> connection)
      : environment(shared), id(peer), link(std::move(connection)), mailbox(*link) {}
  ~PeerLink();

  // Makes the inboxes, which the peer writes and this side reads, and, where GPUDirect works, the
  // outboxes in GPU memory. Fails if no inbox in host memory can be made.
  Status make_receiving_side();
  // Makes the outbox, arenas and paths to the peer's inboxes, from the peer's checked offer.
  Status make_sending_side();

  // State for a pair of devices: one of this worker and one of the peer.
  struct Pair {
    std::optional<Path> device_path;  // none: GPUDirect does not work at one of the ends
    bool ipc = false;                 // the peer can map this side's memory
    std::optional<Planner> planner;
    LegModel gpudirect_leg;
    LegModel ipc_leg;   // the peer pulls; reported by the peer
    LegModel pull_leg;  // this side pulls; reported to the peer
  };
  Pair& pair(int device, int peer_device) { return pairs[{device, peer_device}]; }
  // Returns the planner of one pair of GPUs. The first call makes it.
  Planner& planner(int device, int peer_device);
  Capabilities capabilities(int device, int peer_device);
  // Counts a transfer that is about to start. Returns its callback, which reports the end of the
  // transfer to Peer::transferred, with the copy's id and the chunk's number.
  transport::TransferDone begin_transfer(uint64_t copy, uint64_t number);
  // Returns the measurements so far of copies from `device` to `peer_device`.
  PairModel model(int device, int peer_device);
  // Updates the planners' models from the measurements so far.
  void refresh_models();

  Environment& environment;
  const PeerId id;
  // Declared before the members below, so that it is destroyed after them: the mapping of the
  // peer's inbox and the regions belong to the Link.
  std::unique_ptr<transport::Link> link;
  Mailbox mailbox;
  bool open = false;  // proofs and offers have been exchanged
  // The number of answers (Mappable) that the peer still owes. No copy is planned until it is 0.
  size_t unanswered = 0;
  uint32_t transferring = 0;    // transfers of this side in progress
  OfferMessage offer;           // the peer's; checked
  Arrivals arrivals;            // of the peer's chunks
  uint32_t last_immediate = 0;  // of this side's chunks; increases with each chunk

  Slice inbox;                             // written by the peer
  Slice outbox;                            // wire media only
  std::unique_ptr<MappedInbox> mapped;     // shm: the peer's inbox
  std::vector<DeviceBuffer> device_inbox;  // by device; may be empty buffers
  std::vector<DeviceBuffer> device_outbox;
  std::vector<transport::RegionId> regions;  // of all these buffers, except `mapped`

  Arena peer_inbox;
  Arena outbox_arena;
  std::vector<Arena> peer_device_inbox;
  std::vector<Arena> device_outbox_arena;
  std::optional<Path> host_path;              // once the Link is open
  std::map<std::pair<int, int>, Pair> pairs;  // (own device, peer's)

  // Measured legs.
  LegModel message;                   // one control message
  LegModel wire;                      // from host memory to host memory
  std::vector<DeviceLegs> peer_legs;  // of the peer's devices, as reported by the peer
};

}  // namespace rcuda::p2p
