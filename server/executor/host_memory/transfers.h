// Transfers: moves bytes between a stream and client memory that this worker has as a shadow.
//
// A copy uses the first of these ways that is possible:
//
//   GPUDirect        the adapter moves the bytes between client and device memory (gpu_direct.h)
//   immediate write  from the client: it writes the bytes into the shadow, and the command names
//                    the immediate of these writes (transport::Arrivals)
//   read             from the client: this worker reads the bytes into the shadow. It starts at
//                    once if the client says that the source does not change, otherwise when the
//                    stream reaches the copy
//   put              to the client: the bytes follow the copy without an acknowledgement
//                    (region_puts.h)
//   write            to the client: with an acknowledgement
//
// A host function in the stream starts the transfers that cannot start when the copy is queued. It
// waits for the bytes in chunks, so that the network carries one chunk while the DMA engine copies
// another. If the transfers of all bytes have started, the stream waits at a gate instead
// (arrival_gates.h). A stream in capture gets only the copy; the graph's executables add the
// transfers (graph_copies.h).
// For mirrored memory (mirrors.h) no bytes are moved, because the shadow already has the stream's
// bytes.
// Threads: carry_out() on any thread, all other functions on the executor thread. The host
// functions run on the driver's threads. Blocking: carry_out(); the host functions block the stream
// during the transfers. Errors: those of the driver. A transfer fails if the Link breaks, or if the
// client withdraws its memory during the copy; the bytes then stay unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/arrivals.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/host_memory/arrival_gates.h"
#include "server/executor/host_memory/gpu_direct.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/region_puts.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class Transfers {
 public:
  // All outlive this object, and the streams' work.
  Transfers(const api::DriverTable& driver, transport::Link& link, Answers& answers,
            const HostMemory& host_memory, GpuDirect& gpu_direct, std::shared_ptr<RegionPuts> puts,
            std::shared_ptr<ArrivalGates> gates, transport::Arrivals& arrivals);

  // How many copies can wait at gates at a time.
  size_t gates() const { return gates_->size(); }

  // A range of client memory that lies in one shadow.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };

  // Queues a contiguous copy of memory that the driver knows, if the bytes of a side have to be
  // moved over the Link. Returns nullopt if no bytes have to be moved: the driver's own copy
  // suffices. The stream must not be in capture.
  std::optional<CUresult> copy(const SessionStream& stream, const wire::CopyBody& body);
  // For copies through the staging region: delays the stream's later work until the bytes that the
  // client writes into the region with this immediate have arrived.
  CUresult await_write(const SessionStream& stream, uint32_t immediate, uint64_t bytes);
  // As await_write(), for all writes that the client has started for a copy that the worker
  // refuses. Does nothing if the source of the copy is in no shadow.
  void await_writes(const SessionStream& stream, const wire::CopyBody& body);

  // A transfer of pieces. It can be carried out any number of times, one after the other.
  class Transfer;
  // Returns null if a piece lies in no shadow.
  std::shared_ptr<Transfer> prepare(bool to_client, const std::vector<Piece>& pieces);
  // Moves the pieces. Blocks until they have arrived. Any thread.
  static void carry_out(Transfer& transfer);

  // For 2D and 3D copies: moves the pieces in one host function of the stream. Does nothing in a
  // capture.
  CUresult move(const SessionStream& stream, bool to_client, const std::vector<Piece>& pieces);

 private:
  struct HostWork;
  struct QueuedWork;

  bool is_shadow(uint64_t address, uint64_t bytes) const;
  bool fetches(const wire::CopyBody& body) const;
  bool sends_back(const wire::CopyBody& body) const;
  static void CUDA_CB run(void* argument);
  CUresult queue(const SessionStream& stream, HostWork work);
  std::shared_ptr<Transfer> prepare_direct(const wire::CopyBody& body);
  CUresult copy_by_shadow(const SessionStream& stream, const wire::CopyBody& body);
  CUresult copy_chunks(const SessionStream& stream, const wire::CopyBody& body,
                       const std::shared_ptr<Transfer>& in, const std::shared_ptr<Transfer>& out,
                       bool is_reading);
  // Makes the stream wait for the items from `first` to `end`. If the transfer has a gate, all its
  // items are under way, and the stream waits at the gate. Otherwise the stream waits in a host
  // function, which first starts the items up to `start_to`.
  CUresult await(const SessionStream& stream, const std::shared_ptr<Transfer>& in, size_t first,
                 size_t end, size_t start_to = 0);
  void start_all(const SessionStream& stream, Transfer& in, uint32_t immediate);

  const api::DriverTable& driver_;
  transport::Link& link_;
  Answers& answers_;
  const HostMemory& host_memory_;
  GpuDirect& gpu_direct_;
  const std::shared_ptr<RegionPuts> puts_;
  const std::shared_ptr<ArrivalGates> gates_;
  transport::Arrivals& arrivals_;
};

}  // namespace rcuda::server
