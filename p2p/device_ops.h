// DeviceOps: everything the peer-to-peer engine asks of a GPU. The server implements it with the
// driver's function table, tests with memory and a clock.
//
// Lanes. Each device has three in-order queues of its own, apart from every stream of the program
// (CUDA: non-blocking streams): kOut for copies to host memory, kIn for copies from it, kLocal for
// copies between device memory. Copies of one lane finish in order and are counted by tickets:
// ticket t is over when finished() returns t or more.
//
// Orders. A copy has a place in a stream of the program: it starts when the stream gets there, and
// what follows in the stream waits for it. enter() takes the place: it records where the stream is
// and holds the stream there (CUDA: cuEventRecord, then cuStreamWaitValue32 on a pinned word);
// reached() asks whether the stream got there; release() lets it go on. With hold = false the
// stream is only observed (a cross-server event), and release() only forgets the order. An order
// over two streams' contexts is two orders.
//
// Pauses. A driver may wait for the device in functions that allocate, register and give back, and
// a device waits for a stream that is held, which only the engine lets go. So the engine asks for a
// pause first (pause()): until the end of its round nothing new is held, or even queued. The rules
// and why they never stop a session: p2p/pause.h.
//
// Threads. devices() is called by whoever makes the engine, enter() by whoever calls Engine::copy
// (the worker's executor thread); everything else by the engine's thread, to its end. No function
// blocks for device work, but those that want a pause. Errors are kCuda with the driver's code. An
// error of copy() or finished() ends the copies of that lane and of nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "p2p/pause.h"

namespace rcuda::p2p {

using DeviceAddress = uint64_t;
using Ticket = uint64_t;  // 0: nothing was issued

enum class Lane : uint8_t { kOut, kIn, kLocal };
inline constexpr size_t kLaneCount = 3;

// A place in a stream; 0: none.
enum class Order : uint64_t { kNone = 0 };

// A stream of the program, as the implementer names it (CUDA: the CUstream and its context); or,
// where it is only observed, an event, whose latest record is the place.
struct StreamRef {
  uint64_t stream = 0;
  uint64_t context = 0;
  uint64_t event = 0;
  // The caller knows that the stream is idle, and all that it would wait for. A place in it that
  // holds nothing is reached at once then.
  bool idle = false;
  // The last thing the stream was given is a copy of the engine that holds it, and no stream has
  // been given anything since. If it is still held, the new copy's place is behind that copy and
  // nothing else, and the stream is held once for both.
  bool follows = false;
};

// A box of bytes between two places, each with pitches of its own. Addresses are those of device or
// registered host memory.
struct CopyBox {
  uint64_t destination = 0;
  uint64_t source = 0;
  uint64_t width_bytes = 0;
  uint64_t rows = 1;
  uint64_t slices = 1;
  uint64_t destination_pitch = 0;  // row to row; means nothing for one row
  uint64_t destination_slice = 0;  // slice to slice; means nothing for one slice
  uint64_t source_pitch = 0;
  uint64_t source_slice = 0;
};

// Device memory as another process of this host can map it.
struct ExportedMemory {
  static constexpr size_t kHandleBytes = 128;
  std::array<std::byte, kHandleBytes> handle{};  // as the implementer likes; compared bytewise
  uint64_t offset = 0;                           // of the address asked for, within what is mapped
};

// Such memory of another process, mapped here.
struct MappedMemory {
  DeviceAddress base = 0;
  uint64_t bytes = 0;  // from `base` on, by this side's driver
};

// Device memory as a file that the drivers of adapters understand.
struct DmaBuf {
  UniqueFd file;
  uint64_t offset = 0;  // of the address asked for
};

struct EngineDevice {
  std::string uuid;
  std::string pci_bus_id;  // "0000:3b:00.0", for the NUMA node; may be empty
};

class DeviceOps {
 public:
  virtual ~DeviceOps() = default;

  // The worker's devices; the index is the `device` of every other function. Fixed.
  virtual std::vector<EngineDevice> devices() = 0;

  // Issues copies on a lane, in order; the ticket is of the last. Never waits for them. After an
  // error some of them may be under way; a copy of nothing has a ticket for all that came before.
  virtual Result<Ticket> copy(int device, Lane lane, std::span<const CopyBox> boxes) = 0;
  virtual Result<Ticket> finished(int device, Lane lane) = 0;

  virtual Result<Order> enter(StreamRef stream, bool hold) = 0;
  virtual Result<bool> reached(Order order) = 0;
  // A status that is not ok becomes the stream's asynchronous error (CUDA: latched by the worker
  // and returned by the program's next call). Called exactly once per order, reached or not.
  virtual void release(Order order, const Status& status) = 0;
  // Whether some stream is being held.
  virtual bool holding() = 0;

  // Whether such a pause, or a stronger one, has begun, which lasts until resume(); otherwise it is
  // asked for, and whoever grants it wakes the engine. The engine calls resume() after each round
  // of work. kHolds is what goes on only with it (a connection, memory that somebody waits for to
  // be given back), and no further stream is held until it has been; kWork comes when the program
  // happens to have nothing to do, which may be never.
  virtual bool pause(Pause what) = 0;
  virtual void resume() = 0;

  // In a pause: page-locks host memory for every device (CUDA: cuMemHostRegister, portable).
  virtual Status register_host(void* base, size_t bytes) = 0;
  virtual void unregister_host(void* base) = 0;
  // In a pause: staging buffers in GPU memory.
  virtual Result<DeviceAddress> allocate(int device, size_t bytes) = 0;
  virtual void free(int device, DeviceAddress address) = 0;

  // Memory of this process for a peer of the same host, and the other way. kUnsupported where the
  // memory or the pair of devices cannot. open() is given each handle once until close(), which
  // wants a pause.
  virtual Result<ExportedMemory> export_memory(int device, DeviceAddress address) = 0;
  virtual Result<MappedMemory> open(int device, const ExportedMemory& memory) = 0;
  virtual void close(int device, DeviceAddress base) = 0;

  // kUnsupported where driver, kernel or the kind of memory cannot: it may be registered by its
  // address all the same.
  virtual Result<DmaBuf> dma_buf(int device, DeviceAddress address, size_t bytes) = 0;
  // Whether an adapter may read and write this device's memory in place, as far as can be told
  // before a probe transfer (CUDA: dma-buf or peermem).
  virtual bool may_use_gpudirect(int device) = 0;
};

}  // namespace rcuda::p2p
