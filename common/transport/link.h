// Link: the connection between one client process and one worker, seen as one-sided memory.
//
// Purpose. Each side owns a *window*, a block of plain memory that its peer writes. Everything else
// (command ring, reply slots, completion words, flow-control credits) is laid out inside the
// windows by common/wire, once, and works over every medium: shared memory writes the peer's window
// with memcpy, verbs with RDMA write, TCP sends {offset, bytes} and a receiver thread stores them.
// Bulk data never goes through a window: it moves between exposed *regions*.
//
// Order. Puts of one Link become visible in the order they were issued, whatever thread issued them
// (the Link serialises). Within one put, the last eight bytes become visible last: the peer polls
// them with an acquire load. The first eight bytes are stored as one word as well, so a peer may
// poll them (relaxed) to learn where the last ones will be. Bytes of a put become visible only
// together with or after its predecessors' last words. Transfers are ordered with nothing but their
// own completion; a put issued after a transfer completed is seen after its data.
//
// Threads. Every function may be called from any thread. Blocking is stated per function; nothing
// else blocks, except put() while the medium's send queue is full.
// Errors. Once the peer is gone or the medium broke, every function returns the same kUnavailable
// status, all waiters return, and every pending transfer completes with it. A Link never recovers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/traits.h"

namespace rcuda::transport {

// Whether put() must wake a peer that sleeps in wait(). A put without wake is seen by a peer that
// polls, and no later than by the next put with wake. kNow wakes as kYes does, and says that
// somebody waits for what the peer makes of it: a medium that gathers puts to send them together
// (tcp) sends this one, and all before it, before put() returns. kHandOver is as kNow, but whoever
// puts has other things to do than to send: over tcp, puts of this kind that come closer than
// LinkOptions::receive_spin wake a thread of the Link, which stays awake for as long, and are left
// to it while it is.
enum class Wake : uint8_t { kNo, kYes, kNow, kHandOver };

// Names a region of the peer; minted by the exposing side, unique within a Link, never reused.
enum class RegionId : uint64_t { kNone = 0 };

struct Region {
  RegionId id = RegionId::kNone;
  uint64_t bytes = 0;
};

// How an adapter finds device memory. By default: its driver looks the address up (nvidia-peermem;
// plain memory).
struct DeviceMemory {
  int dma_buf = -1;  // a descriptor of it as dma-buf; the caller's, and not needed after the call
  uint64_t dma_buf_offset = 0;  // of the first byte
  // False: only this side's transfers and loop_back() use it, the peer never hears of it, and
  // unexpose() does not wait for the peer.
  bool for_peer = true;
};

// Called once when a transfer is over, from a thread of the Link or from the calling thread before
// read()/write() returns. Must not block.
using TransferDone = std::function<void(const Status&)>;

// What else is under way beside a write. What counts of one that is alone is when it ends, of one
// among many what it costs.
enum class Company : uint8_t { kAlone, kMany };

// Called on the side that is written to when `bytes` more of a write with that immediate have come:
// once for each part that the medium cuts a write into, in any order, from threads of the Link.
// Must not block.
using ImmediateArrived = std::function<void(uint32_t immediate, uint64_t bytes)>;

using Bytes = std::span<const std::byte>;

inline constexpr size_t kMaxPutPieces = 7;

// What happened on a Link so far. Over verbs, what the peer can have noticed has been counted.
struct LinkCounters {
  uint64_t puts = 0;            // calls of put()
  uint64_t wakes = 0;           // puts that had to wake the peer
  uint64_t window_bytes = 0;    // bytes written into the peer's window
  uint64_t work_requests = 0;   // verbs only: posted WRs
  uint64_t doorbells = 0;       // verbs only: ibv_post_send calls
  uint64_t completions = 0;     // verbs only: polled work completions, those of receives too
  uint64_t receives = 0;        // verbs only: of those, completions of posted receives
  uint64_t arms = 0;            // verbs only: of the WRs, those that ask to be woken before a sleep
  uint64_t arm_answers = 0;     // verbs only: of the WRs, those that answer the peer's arms
  uint64_t transfer_bytes = 0;  // payload moved by read() and write()
  uint64_t copied_bytes = 0;    // of those, bytes this side's CPU copied
  uint64_t registrations = 0;   // verbs only: memory registered for transfers
};

class Link {
 public:
  virtual ~Link() = default;  // closes; returns after no callback can run any more

  // What this Link can do; constant, so that whoever asks often keeps a copy.
  virtual const MediumTraits& traits() const = 0;
  const char* medium() const { return traits().name; }
  // has_adapter: this side's RDMA device ("mlx5_0"); empty on other media.
  virtual std::string adapter() const { return {}; }

  // This side's window, zeroed at start; the peer writes it at any time. Page-aligned.
  virtual std::span<std::byte> window() = 0;
  virtual size_t peer_window_bytes() const = 0;

  // Writes up to kMaxPutPieces `pieces` back to back into the peer's window at `offset` (8-byte
  // aligned, as is the total length, which is at least 8). All are copied before return. Pieces
  // save the caller a gather copy.
  virtual Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) = 0;
  Status put(uint64_t offset, Bytes head, Bytes body, Wake wake) {
    const Bytes pieces[] = {head, body};
    return put(offset, std::span<const Bytes>(pieces), wake);
  }

  // Sleeps until `ready` returns true, the deadline passes (kTimeout) or the Link breaks. `ready`
  // is called on this thread, first of all before sleeping, and after every wake-up. Several
  // threads may wait. Spinning first, if wanted, is the caller's business.
  virtual Status wait(const std::function<bool()>& ready,
                      std::chrono::steady_clock::time_point deadline) = 0;
  // Makes every thread in wait() re-check its predicate (local, for shutdown and timers).
  virtual void interrupt() = 0;

  // Lets the peer read and write [base, base+bytes) until unexpose() or the end of this object.
  // `backing`, when it is a valid descriptor with `backing_offset`, lets a peer on this host map
  // the same pages; without it shared memory has no direct path and the peer's map() returns
  // nullptr. It must be a memfd made with MFD_ALLOW_SEALING: the Link seals it against shrinking,
  // which would crash the peer. Blocks for registration at most. The Link duplicates the
  // descriptor.
  virtual Result<Region> expose(void* base, size_t bytes, int backing = -1,
                                uint64_t backing_offset = 0) = 0;
  // The same for memory that devices alone may touch: GPU memory at an address of this process. It
  // must not be freed before unexpose(). That this succeeds proves nothing: loop_back() does.
  // kUnsupported without has_adapter.
  virtual Result<Region> expose_device(void* base, size_t bytes, const DeviceMemory& memory) = 0;
  // Copies bytes between two places of this side, each inside one of its exposed regions, through
  // the adapter. Blocks until they are there, or for LinkOptions::peer_timeout. As expose_device().
  virtual Status loop_back(void* to, const void* from, size_t bytes) = 0;
  // Pending transfers of it fail. Once this returned, no peer touches the memory through this Link;
  // where the region has a backing and the peer mapped it, the peer may still touch those pages.
  // Blocks, where an adapter moves the bytes, until the peer has let go of the region: not for a
  // TransferDone.
  virtual Status unexpose(RegionId region) = 0;

  // The peer's region mapped here at `address` (nullptr: anywhere), or nullptr where the medium
  // cannot or the region has no backing. `bytes` is what the caller will use, which it has from
  // somewhere else than the announcement: a region of another size is refused (kInvalidArgument),
  // so that a peer can neither make an access here fault nor have more replaced at `address` than
  // the caller agreed to. Blocks until the region's announcement has arrived, and for
  // LinkOptions::peer_timeout at most (kNotFound). An `address` belongs to the caller: whatever is
  // mapped there is replaced, and unmap() leaves the range reserved and inaccessible.
  virtual Result<void*> map(RegionId region, size_t bytes, void* address = nullptr) = 0;
  virtual Status unmap(RegionId region) = 0;

  // Moves bytes between the peer's region and local memory. Asynchronous; `local` must stay valid
  // until `done` ran. No order between transfers. Works on every medium (shares_pages: only for
  // regions with backing; ask map()).
  virtual void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                     TransferDone done) = 0;
  virtual void read(RegionId region, uint64_t offset, void* local, size_t bytes,
                    TransferDone done) = 0;

  // RDMA's write with immediate: the peer learns of the arrival from the write itself, where
  // otherwise its end would have to come back before a put could tell. kUnsupported without
  // has_immediates. `immediate` is not 0, and there is at least a byte.
  //
  // `done` says that this side has done its part; the peer is told of the arrival. With
  // copies_by_cpu sockets may hold pages of `local` until the peer has said that it arrived: it
  // must not change before, but may be unmapped after `done`. A write outside of the peer's region
  // then breaks the Link, and one into a region that has been withdrawn is dropped.
  virtual void write_with_immediate(RegionId, uint64_t, const void*, size_t, uint32_t, Company,
                                    TransferDone done) {
    done({Code::kUnsupported, std::string(medium()) + " has no write with immediate"});
  }
  // What arrives before this was called, or after it was called with nullptr, is told to nobody.
  // Returns after the function that was there before cannot run any more.
  virtual void on_immediate(ImmediateArrived) {}

  // The status that broke the Link, or ok. Never blocks.
  virtual Status status() const = 0;
  // Tells the peer this side ends on purpose, so that it logs no loss, and breaks the Link.
  virtual void close() = 0;
  virtual LinkCounters counters() const = 0;

  // For a forked child, which inherited descriptors but no thread: closes this process's copies of
  // them so that the peer can notice the parent's death, and tells the peer nothing. Called from
  // pthread_atfork's child handler: async-signal-safe, no locks. The object is never used again.
  virtual void abandon() noexcept = 0;
};

// 50 us, about what waking a thread takes, on a host with eight cores or more; otherwise none.
std::chrono::nanoseconds default_receive_spin();

struct LinkOptions {
  size_t window_bytes = 8u << 20;  // of this side's own window; at most 1 GiB
  // tcp: further sockets for transfers; verbs: queue pairs. The server's side decides.
  int bulk_streams = 4;
  // tcp: how long a receiving thread that has just had something looks for more before it sleeps.
  std::chrono::nanoseconds receive_spin = default_receive_spin();
  // verbs: the PCI address of the device that transfers are for ("0000:3b:00.0"); of several
  // adapters the nearest is used. Empty: none in particular.
  std::string near_pci;
  // The peer's Link sends a sign of life at least four times in this span; without one for so long
  // the Link breaks. Zero: a silent peer is waited for (a client in a debugger), and only its end
  // or the loss of its host breaks the Link.
  std::chrono::milliseconds peer_timeout{10'000};
};

// How a Link comes to be: both sides hold a connected stream socket of the kind that the medium's
// reach says, on which the session handshake has ended. Both call make_link() (media.h); it
// exchanges what the medium needs over that socket (window sizes, memfds, ports, queue pair
// numbers) and takes the socket over: its end is how the death of the peer is noticed. `server`
// distinguishes the sides. Blocks until the peer has done its part or the timeout passed.
//
// A medium that needs further sockets calls `accept_stream` (server) for those that the client's
// `open_stream` connects; the daemon routes them to the right worker by the session's token. Both
// are there where the reach is kNetwork.
struct Bootstrap {
  UniqueFd control;
  bool server = false;
  std::chrono::milliseconds timeout{10'000};
  std::function<Result<UniqueFd>(int index)> open_stream;    // client side
  std::function<Result<UniqueFd>(int index)> accept_stream;  // server side
};

}  // namespace rcuda::transport
