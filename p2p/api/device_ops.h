// DeviceOps: all GPU operations of the peer-to-peer engine. The server implements it with the
// driver's function table; tests implement it with memory and a clock.
//
// Lanes. Each device has three in-order queues that belong to the engine, apart from the program's
// streams (CUDA: non-blocking streams): kOut for copies to host memory, kIn for copies from host
// memory, kLocal for copies between device memory. Copies of one lane finish in order and are
// counted by tickets: ticket t is finished when finished() returns t or more.
//
// Stream places. A copy may have a place in a stream of the program. The copy starts when the
// stream reaches that place, and later work in the stream waits for the copy. enter() takes the
// place: it records the stream's position and holds the stream there (CUDA: cuEventRecord, then
// cuStreamWaitValue32 on a pinned word). reached() returns whether the stream has reached the
// place. release() lets the stream continue. With hold = false the stream is only observed (for an
// event that another server waits for), and release() only forgets the place. A stream is
// identified by its CUstream and its context, because the default streams of all contexts have the
// same CUstream.
//
// Pauses. Driver functions that allocate, register or free memory may wait for the device. The
// device may wait for a held stream, which only the engine releases. So the engine first requests a
// pause (pause()): until the end of the engine's round, no further stream is held, and in a kWork
// pause no work is queued. p2p/api/pause.h has the rules and shows that they cannot deadlock a
// session.
//
// Threads. The thread that constructs the Engine calls devices(), and the thread that calls
// Engine::copy (the worker's executor thread) calls enter(). The engine thread calls all other
// functions, until it ends. A function blocks for device work only if its comment says "in a
// pause". Errors are kCuda with the driver's code. An error of copy() ends that copy. An error of
// finished() ends all copies of that lane. Other lanes continue.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "p2p/api/pause.h"

namespace rcuda::transport {
class Link;
}

namespace rcuda::p2p {

using DeviceAddress = uint64_t;
using Ticket = uint64_t;  // 0: nothing was issued

enum class Lane : uint8_t { kOut, kIn, kLocal };
inline constexpr size_t kLaneCount = 3;

// Identifies a place in a stream; 0: none.
enum class StreamPlace : uint64_t { kNone = 0 };

// A stream of the program, in the implementer's terms (CUDA: the CUstream and its context). Instead
// of a stream that is only observed, the caller may name an event; the place is then the event's
// latest record.
struct StreamRef {
  uint64_t stream = 0;
  uint64_t context = 0;
  uint64_t event = 0;
  // The caller knows that all work in the stream, and all work that the stream would wait for, has
  // ended. So a place that does not hold the stream is reached at once.
  bool idle = false;
  // The stream's last work is a copy of the engine, which holds the stream, and no work has been
  // queued in any stream since. If the stream is still held, the new copy comes directly after that
  // copy, and the stream is held once for both.
  bool follows = false;
};

// A box of bytes that is copied from one place to another, each with its own pitches. Addresses are
// those of device memory or of registered host memory.
struct CopyBox {
  uint64_t destination = 0;
  uint64_t source = 0;
  uint64_t width_bytes = 0;
  uint64_t rows = 1;
  uint64_t slices = 1;
  uint64_t destination_pitch = 0;  // from row to row; ignored for one row
  uint64_t destination_slice = 0;  // from slice to slice; ignored for one slice
  uint64_t source_pitch = 0;
  uint64_t source_slice = 0;
};

// Device memory in a form that another process of this host can map.
struct ExportedMemory {
  static constexpr size_t kHandleBytes = 128;
  std::array<std::byte, kHandleBytes> handle{};  // opaque; compared bytewise
  uint64_t offset = 0;                           // from MappedMemory::base to the exported address
};

// Exported memory of another process, mapped in this one.
struct MappedMemory {
  DeviceAddress base = 0;
  uint64_t bytes = 0;  // size of the mapping, as this side's driver reports it
};

// Device memory as a file descriptor that the drivers of RDMA adapters accept.
struct DmaBuf {
  UniqueFd file;
  uint64_t offset = 0;  // of the given address in the file
};

struct EngineDevice {
  std::string uuid;
  std::string pci_bus_id;  // "0000:3b:00.0"; gives the NUMA node; may be empty
};

class DeviceOps {
 public:
  virtual ~DeviceOps() = default;

  // Returns the worker's devices; the list never changes. The other functions take an index into it
  // as `device`.
  virtual std::vector<EngineDevice> devices() = 0;

  // Issues copies on a lane, in order. Returns the ticket of the last copy and does not wait for
  // the copies. After an error some copies may be in progress. An empty list gets a ticket that is
  // finished when all earlier copies of the lane are.
  virtual Result<Ticket> copy(int device, Lane lane, std::span<const CopyBox> boxes) = 0;
  virtual Result<Ticket> finished(int device, Lane lane) = 0;

  virtual Result<StreamPlace> enter(StreamRef stream, bool hold) = 0;
  virtual Result<bool> reached(StreamPlace place) = 0;
  // Called exactly once per place, whether it has been reached or not. An error in `status` becomes
  // the stream's asynchronous error (CUDA: the worker keeps it, and the program's next call returns
  // it).
  virtual void release(StreamPlace place, const Status& status) = 0;
  // Whether any stream is held.
  virtual bool holding() = 0;

  // Returns true if a pause of this kind, or of a stronger kind, is in progress. The pause lasts
  // until resume(). Otherwise requests the pause and returns false; the thread that grants the
  // pause wakes the engine. The engine calls resume() after each round of work.
  //
  // kHolds is for work that must be done soon (connecting; unmapping memory that a peer wants to
  // free). From its request until its end, no further stream is held. kWork is for work that can
  // wait: a kWork pause begins only when the program has no work, which may be never.
  virtual bool pause(Pause what) = 0;
  virtual void resume() = 0;

  // In a pause: page-locks host memory for every device (CUDA: cuMemHostRegister, portable).
  virtual Status register_host(void* base, size_t bytes) = 0;
  virtual void unregister_host(void* base) = 0;
  // In a pause: allocates and frees staging buffers in GPU memory.
  virtual Result<DeviceAddress> allocate(int device, size_t bytes) = 0;
  virtual void free(int device, DeviceAddress address) = 0;

  // Exports memory of this process for a peer on the same host, and maps exported memory of a peer.
  // kUnsupported if the memory or the pair of devices does not support it. open() is called once
  // for each device and handle until close(). close() is called in a pause.
  virtual Result<ExportedMemory> export_memory(int device, DeviceAddress address) = 0;
  virtual Result<MappedMemory> open(int device, const ExportedMemory& memory) = 0;
  virtual void close(int device, DeviceAddress base) = 0;

  // In a pause: returns whether the Link's adapter can read and write this device's memory
  // directly. Makes a probe transfer, because a successful registration proves nothing. A success
  // counts for all Links of the adapter; after a failure, the next call probes again. Logs the
  // result. Blocks for milliseconds; longer if the device's queues are full (up to a second for
  // each of four copies), or if the adapter does not answer (as long as Link::loop_back()).
  virtual bool prove_gpudirect(int device, transport::Link& link) = 0;
  // Returns the dma-buf with which to register this memory, or nullopt if it must be registered by
  // its address. prove_gpudirect() has found which of the two works for the device. kUnsupported if
  // neither works, or if this memory has no dma-buf.
  virtual Result<std::optional<DmaBuf>> dma_buf(int device, DeviceAddress address,
                                                size_t bytes) = 0;
};

}  // namespace rcuda::p2p
