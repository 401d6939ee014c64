// Path: how chunks reach the peer. A path decides where the copy-out puts a chunk and what
// transports it.
//
//   shm     the copy-out writes straight into the peer's pinned inbox, which is mapped here; the
//           bytes need no transport
//   wire    the copy-out writes into this side's outbox; Link::write moves it to the peer's inbox,
//           over tcp or verbs. With GPUDirect both are in GPU memory
//   direct  no copy-out: Link::write moves the bytes from the source to the destination
//
// Copies share a path, and paths share arenas (two GPUs of a sender write into one inbox).
// reserve() limits the bytes in flight. Arenas and Link outlive the path. Only the engine thread
// calls a path. Nothing blocks except Link::put, which waits while the send queue is full. The
// `done` function of transfer() runs on a thread of the Link, or before transfer() returns.
#pragma once

#include <cstdint>
#include <optional>

#include "common/transport/link.h"
#include "p2p/staging/arena.h"

namespace rcuda::p2p {

// Where a chunk's bytes are when the receiver learns of them. On the wire in ChunkMessage.
enum class Where : uint32_t {
  kHostInbox = 1,    // in the receiver's pinned inbox
  kDeviceInbox = 2,  // in the receiver's inbox in GPU memory
  kTarget = 3,       // at their destination (registered)
};

// Room for one chunk at both ends.
struct Slot {
  uint64_t local = 0;   // address where copy-out writes, or (direct) of the source bytes
  uint64_t remote = 0;  // offset in the receiver's inbox or target
  uint64_t bytes = 0;
};

class Path {
 public:
  virtual ~Path() = default;

  virtual Where where() const = 0;
  // Whether chunks are in host memory between copy-out and copy-in.
  virtual bool in_host_memory() const = 0;
  // Whether a chunk must be copied out before transfer().
  virtual bool copies_out() const { return true; }
  // Whether transfer() is needed.
  virtual bool needs_transfer() const = 0;

  // The most bytes that reserve() can grant in total.
  virtual uint64_t capacity_bytes() const = 0;
  // Room for the chunk [offset, offset + bytes) of a copy. nullopt: there is no room now.
  virtual std::optional<Slot> reserve(uint64_t offset, uint64_t bytes) = 0;
  virtual void release(const Slot& slot) = 0;
  // Whether a chunk transferred with an immediate reports its own arrival to the receiver. Such a
  // chunk can be announced before it has arrived.
  virtual bool tells_arrival() const { return false; }
  // `immediate`: 0 for none.
  virtual void transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                        transport::TransferDone done) = 0;
};

// Through the peer's inbox, which is mapped here.
class ShmPath final : public Path {
 public:
  ShmPath(void* mapped_inbox, Arena& inbox)
      : base_(reinterpret_cast<uint64_t>(mapped_inbox)), inbox_(inbox) {}

  Where where() const override { return Where::kHostInbox; }
  bool in_host_memory() const override { return true; }
  bool needs_transfer() const override { return false; }
  uint64_t capacity_bytes() const override { return inbox_.bytes(); }
  std::optional<Slot> reserve(uint64_t offset, uint64_t bytes) override;
  void release(const Slot& slot) override { inbox_.release(slot.remote, slot.bytes); }
  void transfer(const Slot&, uint32_t, transport::Company, transport::TransferDone) override {}

 private:
  uint64_t base_;
  Arena& inbox_;
};

// From an outbox of this side to an inbox of the peer.
class WirePath final : public Path {
 public:
  WirePath(transport::Link& link, Where where, uint64_t outbox_base, Arena& outbox,
           transport::RegionId region, Arena& inbox)
      : link_(link),
        where_(where),
        base_(outbox_base),
        outbox_(outbox),
        region_(region),
        inbox_(inbox) {}

  Where where() const override { return where_; }
  bool in_host_memory() const override { return where_ == Where::kHostInbox; }
  bool needs_transfer() const override { return true; }
  uint64_t capacity_bytes() const override;
  std::optional<Slot> reserve(uint64_t offset, uint64_t bytes) override;
  void release(const Slot& slot) override;
  bool tells_arrival() const override { return link_.traits().has_immediates; }
  void transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                transport::TransferDone done) override;

 private:
  transport::Link& link_;
  Where where_;
  uint64_t base_;
  Arena& outbox_;
  transport::RegionId region_;
  Arena& inbox_;
};

// From the source's range to the destination's range, for one copy.
class DirectPath final : public Path {
 public:
  DirectPath(transport::Link& link, uint64_t source, uint64_t bytes, transport::RegionId target)
      : link_(link), source_(source), bytes_(bytes), target_(target) {}

  Where where() const override { return Where::kTarget; }
  bool in_host_memory() const override { return false; }
  bool copies_out() const override { return false; }
  bool needs_transfer() const override { return true; }
  uint64_t capacity_bytes() const override { return bytes_; }
  std::optional<Slot> reserve(uint64_t offset, uint64_t bytes) override {
    return Slot{source_ + offset, offset, bytes};
  }
  void release(const Slot&) override {}
  void transfer(const Slot& slot, uint32_t immediate, transport::Company company,
                transport::TransferDone done) override;

 private:
  transport::Link& link_;
  uint64_t source_;
  uint64_t bytes_;
  transport::RegionId target_;
};

}  // namespace rcuda::p2p
