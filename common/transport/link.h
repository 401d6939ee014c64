// Link: the connection between one client process and one worker, or between two workers. Each side
// reads and writes memory of the other side.
//
// Purpose. Each side owns a *window*, a block of plain memory that its peer writes. common/wire
// defines the layout of the windows (command ring, reply slots, completion words, flow-control
// credits), which is the same for every medium. Shared memory writes the peer's window with memcpy,
// verbs with RDMA writes. TCP sends {offset, bytes}, and a thread of the receiver stores the bytes.
// Bulk data never goes through a window. It moves between exposed *regions*.
//
// Order. Puts of one Link become visible in the order in which they were issued, on any thread (the
// Link serialises them). Within one put, the last eight bytes become visible last; the peer polls
// them with an acquire load. The first eight bytes are also stored as one word, so a peer may poll
// them (relaxed) to learn where the last eight will be. No byte of a put becomes visible before the
// last word of the previous put. Transfers are ordered only by their completion: a put issued after
// a transfer has completed becomes visible after the transfer's data. Exceptions: put_region() and
// write_in_order() are in order with puts; the data of write_with_immediate() has arrived only when
// the peer has its immediate.
//
// Threads. Every function may be called from any thread. A function blocks only where its comment
// says so; put() also blocks while the medium's send queue is full.
//
// Errors. When the peer is gone or the medium has failed, every function returns the same
// kUnavailable status, all waiters return, and every pending transfer completes with that status. A
// Link never recovers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "common/base/socket.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/transport/traits.h"

namespace rcuda::transport {

// Whether put() must wake a peer that sleeps in wait().
//   kNo: no. A peer that polls sees the put; a sleeping peer sees it with the next put that wakes.
//   kYes: yes. Over tcp, a thread of the Link sends the puts of a long series, so that the callers
//       need not send (tcp/tcp_sender.h).
//   kNow: yes, and a thread waits for the peer's answer. A medium that gathers puts (tcp) sends
//       this put and all earlier puts at once.
//   kHandOver: as kYes if a thread of the Link is awake to send the put, else as kNow.
//   kWithNext: no. The caller's next put follows at once. A medium that gathers puts (tcp) sends
//       both together.
enum class Wake : uint8_t { kNo, kYes, kNow, kHandOver, kWithNext };
constexpr bool wakes_peer(Wake wake) { return wake != Wake::kNo && wake != Wake::kWithNext; }

// Which puts end the sleep of a thread in wait().
//   kAny: all puts that wake.
//   kNotAnswers: all puts that wake except those into LinkOptions::answers, if the medium can
//       distinguish them (shm, tcp; not verbs).
enum class WokenBy : uint8_t { kAny, kNotAnswers };

// A part of a window.
struct WindowPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool holds(uint64_t at) const { return at >= offset && at - offset < bytes; }
};

// Names a region of the peer. Assigned by the side that exposes it, unique within a Link, never
// reused.
enum class RegionId : uint64_t { kNone = 0 };

struct Region {
  RegionId id = RegionId::kNone;
  uint64_t bytes = 0;
};

// How an adapter finds device memory. By default, the adapter's driver finds it by its address. GPU
// memory then needs nvidia-peermem; softgpu's device memory is ordinary memory.
struct DeviceMemory {
  int dma_buf = -1;  // dma-buf descriptor of the memory, owned by the caller; used in the call only
  uint64_t dma_buf_offset = 0;  // of the memory's first byte
  // False: only transfers of this side and loop_back() use the memory. The memory is not announced
  // to the peer, and unexpose() does not wait for the peer.
  bool for_peer = true;
};

// Called once when a transfer has ended, from a thread of the Link, or from the calling thread
// before read() or write() returns. Must not block.
using TransferDone = std::function<void(const Status&)>;

// What to optimise in a write with immediate. kAwaited: latency; the caller has no other work. Over
//   tcp, the calling thread sends some of the bytes itself. kAlone: latency; the caller has other
//   work. kMany: CPU time; the write is one of many in progress.
enum class Company : uint8_t { kAwaited, kAlone, kMany };

// Called on the receiving side when `bytes` more of a write with this immediate have arrived. The
// medium may cut a write into parts: the function is then called once for each part, in any order.
// Called from threads of the Link. Must not block.
using ImmediateArrived = std::function<void(uint32_t immediate, uint64_t bytes)>;

using Bytes = std::span<const std::byte>;

inline constexpr size_t kMaxPutPieces = 7;
inline constexpr size_t kMaxRegionPut = 64u << 10;

// Activity of a Link so far. Over verbs, a work request is counted before the peer can notice it.
template <typename Count>
struct CountersOf {
  Count puts{0};           // calls of put()
  Count wakes{0};          // shm and verbs only: wake-ups of the peer by puts
  Count window_bytes{0};   // bytes written into the peer's window
  Count work_requests{0};  // verbs only: posted work requests
  Count doorbells{0};      // verbs only: ibv_post_send calls
  Count completions{0};    // verbs only: polled work completions, including those of receives
  Count receives{0};       // verbs only: of these, completions of posted receives
  Count arms{0};           // verbs only: work requests for a wake-up, sent before a thread sleeps
  Count arm_answers{0};  // verbs only: work requests that answer the peer's arms
  Count transfer_bytes{0};  // payload of transfers and of put_region()
  Count copied_bytes{0};    // of these, bytes copied by this side's CPU
  Count registrations{0};   // verbs only: registrations of memory for transfers
};
using LinkCounters = CountersOf<uint64_t>;

class Link {
 public:
  virtual ~Link() = default;  // closes the Link; returns when no callback can run any more

  // The medium's capabilities. Constant: a caller may keep a copy.
  virtual const MediumTraits& traits() const = 0;
  const char* medium() const { return traits().name; }
  // With has_adapter: the name of this side's RDMA device ("mlx5_0"). Empty on other media.
  virtual std::string adapter() const { return {}; }

  // This side's window: page-aligned, zeroed at the start. The peer may write it at any time.
  virtual std::span<std::byte> window() = 0;
  virtual size_t peer_window_bytes() const = 0;

  // Writes up to kMaxPutPieces `pieces` back to back into the peer's window at `offset`. The offset
  // and the total length are multiples of 8; the length is at least 8. All bytes are copied before
  // put() returns. With several pieces, the caller need not gather them first.
  virtual Status put(uint64_t offset, std::span<const Bytes> pieces, Wake wake) = 0;
  Status put(uint64_t offset, Bytes head, Bytes body, Wake wake) {
    const Bytes pieces[] = {head, body};
    return put(offset, std::span<const Bytes>(pieces), wake);
  }

  // Sleeps until `ready` returns true, the deadline passes (kTimeout) or the Link breaks. Calls
  // `ready` on this thread before it sleeps, after every wake-up, and once after the Link broke,
  // because the peer's last put may have arrived just before. Several threads may wait. A caller
  // that wants to spin does so before the call. With kNotAnswers `ready` must not depend on
  // LinkOptions::answers.
  virtual Status wait(const std::function<bool()>& ready,
                      std::chrono::steady_clock::time_point deadline,
                      WokenBy woken_by = WokenBy::kAny) = 0;
  // Makes every thread of this side in wait() call its `ready` again. For shutdown and timers.
  virtual void interrupt() = 0;

  // Lets the peer read and write [base, base+bytes) until unexpose() or until this object is
  // destroyed. `backing` is a descriptor of the memory, or -1; the region starts at
  // `backing_offset` in it. With a backing, a peer on this host can map the same pages. Without a
  // backing, the peer's map() returns nullptr, and shared memory cannot transfer the region's
  // bytes. The backing must be a memfd made with MFD_ALLOW_SEALING: the Link seals it against
  // shrinking, which would crash the peer. The Link duplicates the descriptor. Blocks only while
  // the memory is registered.
  virtual Result<Region> expose(void* base, size_t bytes, int backing = -1,
                                uint64_t backing_offset = 0) = 0;
  // As expose(), for memory that only devices may touch: GPU memory at an address of this process.
  // The memory must not be freed before unexpose(). Success does not prove that the adapter reaches
  // the memory; loop_back() does. kUnsupported without has_adapter.
  virtual Result<Region> expose_device(void* base, size_t bytes, const DeviceMemory& memory) = 0;
  // Copies bytes through the adapter between two places on this side, each inside an exposed
  // region. Blocks until they have arrived, LinkOptions::peer_timeout at most (2 s if it is zero).
  // kUnsupported without has_adapter.
  virtual Status loop_back(void* to, const void* from, size_t bytes) = 0;
  // Withdraws the region. Its pending transfers fail. After the return, no peer touches the memory
  // through this Link; a peer that has mapped the region's backing may still touch those pages.
  // With has_adapter, unexpose() blocks until the peer has released the region, so a TransferDone
  // must not call unexpose().
  virtual Status unexpose(RegionId region) = 0;

  // Lends [base, base+bytes) to a Link with Reconnecting, so that the Link need not copy the
  // sources of writes in this memory. The Link may read such a source even after `done`: until the
  // peer has all of its bytes. The source must not change before then, or before take_back(). For
  // sources in other memory, and for put_region(), the rules of the functions below apply.
  // take_back(), with the same arguments, copies the bytes that the peer lacks; afterwards the Link
  // does not read the memory. On other Links, both functions do nothing.
  virtual void lend(const void*, size_t) {}
  virtual void take_back(const void*, size_t) {}

  // Maps the peer's region at `address` (nullptr: anywhere). Returns nullptr if the medium cannot
  // map or the region has no backing. `bytes` is the size that the caller expects: a region that
  // was announced with another size is refused (kInvalidArgument). So a peer can neither cause a
  // fault here nor replace more memory at `address` than the caller agreed to. Blocks until the
  // region has been announced; fails with kNotFound after LinkOptions::peer_timeout. The range at
  // `address` belongs to the caller: map() replaces the mappings there, and unmap() leaves the
  // range reserved and inaccessible.
  virtual Result<void*> map(RegionId region, size_t bytes, void* address = nullptr) = 0;
  virtual Status unmap(RegionId region) = 0;

  // Move bytes between the peer's region and local memory. Asynchronous, but a call may block until
  // the bytes of earlier put_region() calls have arrived (verbs). `local` must stay valid until
  // `done` has run. Transfers have no order among each other. Both functions work on every medium,
  // but with shares_pages only for regions with a backing, which map() can map.
  virtual void write(RegionId region, uint64_t offset, const void* local, size_t bytes,
                     TransferDone done) = 0;
  virtual void read(RegionId region, uint64_t offset, void* local, size_t bytes,
                    TransferDone done) = 0;

  // Writes up to kMaxRegionPut bytes into the peer's region, in order with puts: later puts become
  // visible after the bytes, and later transfers happen after them. So the next put can announce
  // the bytes to the peer at once. Bytes of write() can be announced only after its completion. All
  // bytes are copied before the return. The copies may stay on this side until the next put,
  // transfer or flush(). Blocks as put(); over verbs also until the peer has announced the region
  // (kNotFound after LinkOptions::peer_timeout). Wakes no thread. Bytes outside of the peer's
  // region break the Link; for a withdrawn region they are dropped. kUnsupported without
  // has_region_puts.
  virtual Status put_region(RegionId, uint64_t, Bytes) {
    return {Code::kUnsupported, std::string(medium()) + " does not support puts into regions"};
  }

  // As put_region(), for many bytes. The bytes are not copied and must not change until `done`.
  // `done` means that this side has finished, not that the bytes have arrived. Later puts of all
  // threads become visible only after the bytes have arrived, so a write should take some
  // milliseconds at most. Of two writes to the same place, the later write wins. Blocks as put().
  // `done` may run inside the call, and must not use the Link. No other TransferDone runs inside
  // the call. kUnsupported without orders_writes.
  virtual void write_in_order(RegionId, uint64_t, const void*, size_t, TransferDone done) {
    done({Code::kUnsupported, std::string(medium()) + " does not support writes in order"});
  }

  // Sends the bytes that put_region() has kept on this side. Blocks no longer than one send.
  virtual void flush() {}
  // With has_region_puts: each put and each transfer calls `first` before it sends anything, on the
  // calling thread, which may hold locks of its own. `first` may call put_region() and
  // write_in_order(), so its bytes arrive before the put or transfer. Call before_puts() once,
  // before other threads use the Link.
  virtual void before_puts(std::function<void()>) {}

  // RDMA write with immediate: the peer is notified of the write's arrival. With write(), the
  // completion must come back to this side before a put can notify the peer. kUnsupported without
  // has_immediates. `immediate` is not 0, and `bytes` is at least 1.
  //
  // `done` means that this side has finished with the memory. Only the peer learns that the bytes
  // have arrived.
  //
  // A write outside of the peer's region breaks the Link (tcp) or fails (verbs). A write into a
  // withdrawn region is dropped (tcp) or fails (verbs).
  virtual void write_with_immediate(RegionId, uint64_t, const void*, size_t, uint32_t, Company,
                                    TransferDone done) {
    done({Code::kUnsupported, std::string(medium()) + " does not support writes with immediate"});
  }
  // Sets the function to call for each arrival; nullptr: none. Arrivals without such a function are
  // dropped. Returns when the previous function cannot run any more.
  virtual void on_immediate(ImmediateArrived) {}

  // true: this process may be stopped from now on, and then sends no heartbeats. false: it sends
  // them again. In between, the peer's limit of silence (LinkOptions::peer_timeout) does not apply,
  // as if it were zero. Blocks as put().
  virtual void announce_silence(bool) {}

  // False while the Link waits for a lost connection (Reconnecting).
  virtual bool is_connected() const { return true; }
  // The status that broke the Link, or ok.
  virtual Status status() const = 0;
  // Reports to the peer that this side ends on purpose; the peer logs no loss. Breaks the Link.
  virtual void close() = 0;
  virtual LinkCounters counters() const = 0;

  // For a forked child, which has inherited descriptors but no threads: closes the child's copies
  // of the descriptors, so that the peer can notice the parent's death. Sends nothing to the peer.
  // Called from the child handler of pthread_atfork: async-signal-safe, takes no locks. The child
  // must not use this object again.
  virtual void abandon() noexcept = 0;
};

// 50 us, about the time to wake a thread, where the process may use eight processors or more; zero
// otherwise.
std::chrono::nanoseconds default_receive_spin();

inline constexpr size_t kRetainedBytes = 4u << 20;

struct LinkOptions {
  size_t window_bytes = 8u << 20;  // of this side's own window; at most 1 GiB
  // The part of this side's own window that has the answers to its calls. Writes into it do not
  // wake threads that wait for other data (WokenBy::kNotAnswers); a wake-up costs the peer 1.7 us.
  WindowPart answers;
  // tcp: sockets for transfers; verbs: queue pairs for transfers. The server's value is used. 0:
  // tcp chooses by the processors of both sides (tcp/tcp_connect.cpp), verbs takes four.
  int bulk_streams = 0;
  // tcp: how long a receiving thread polls for more data before it sleeps. The thread that receives
  // puts may poll for up to 0.8 ms (tcp/adaptive_spin.h). Zero: the threads do not poll.
  std::chrono::nanoseconds receive_spin = default_receive_spin();
  // verbs: the PCI address of the GPU that uses this Link ("0000:3b:00.0"). The adapter nearest to
  // it is used. Empty: no preference.
  std::string near_pci;
  // The peer sends at least four heartbeats in this time. If nothing arrives for this time, the
  // Link breaks. Zero: the peer may be silent, such as a client that is stopped in a debugger; the
  // Link breaks only when the peer's process ends or its host is lost.
  std::chrono::milliseconds peer_timeout{10'000};
  // tcp, with Reconnecting: how many bytes each direction of a socket copies and keeps until the
  // peer has them. At most four times as many bytes are unacknowledged, including bytes that are
  // retained by their address only. Both sides use the server's value.
  size_t retained_bytes = kRetainedBytes;
  // tcp, without Reconnecting: a text for the end of the status if the Link breaks because the peer
  // was silent for too long.
  std::string remedy_for_silence;
};

// How a Link over tcp outlives the loss of its connections (tcp/reconnects.h). Functions are called
// by threads of the Link, several at a time.
struct Reconnecting {
  // How long the Link waits for its connections to come back. Zero: a lost connection breaks it.
  std::chrono::milliseconds limit{0};
  bool connects = false;  // this side connects; otherwise it waits for the peer to connect
  // Makes or awaits the connection that replaces the socket `index`, and proves that it belongs to
  // the session. kNotFound: the session does not exist any more.
  std::function<Result<Socket>(int index, std::chrono::steady_clock::time_point deadline)> next;
  // Sets the function to call when a replacing connection has arrived, before next() returns the
  // connection; nullptr: none. Returns when the previously set function cannot run any more. Empty
  // if this side connects.
  std::function<void(std::function<void(int index)>)> on_connection;
  // Called at the first loss, and when all connections are back. May be empty. `is_new` is false if
  // the loss belongs to a loss that was reported earlier: the peer may replace its sockets one
  // after another.
  std::function<void(bool is_lost, bool is_new)> changed;
  std::string peer;  // its name, for the log
};

// The arguments of make_link() (media.h). Each side has a connected stream socket, of the kind that
// the medium's reach needs, on which the session handshake has ended. Both sides call make_link().
// make_link() exchanges the medium's data over the socket (window sizes, memfds, the server's RDMA
// address) and takes ownership of the socket. The Link keeps the socket open: its end shows that
// the peer is gone. `server` distinguishes the two sides. make_link() blocks until the peer has
// done its part or the timeout has passed.
//
// A medium that needs more sockets calls `open_stream` on the client and `accept_stream` on the
// server. The daemon routes these connections to the right worker (Attach and PeerHello in
// common/messages/handshake.h). Each side has its own function if the reach is kNetwork. Several
// threads may call the function at once. If `control` is encrypted, so are these sockets.
struct Bootstrap {
  Socket control;
  bool server = false;
  std::chrono::milliseconds timeout{10'000};
  std::function<Result<Socket>(int index)> open_stream;    // client side
  std::function<Result<Socket>(int index)> accept_stream;  // server side
  Reconnecting reconnecting;  // its limit is zero on both sides or on neither side
};

}  // namespace rcuda::transport
