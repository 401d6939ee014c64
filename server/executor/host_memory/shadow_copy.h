// ShadowCopies: copies whose host memory is client memory of which this worker has only a shadow.
//
// The bytes move over the Link when the stream reaches the copy, or from the client at once if it
// says that it may be so, or if it writes them itself (transport::Arrivals). Host functions in the
// stream start the transfers and wait for them, in chunks, so that the network carries one chunk
// while the DMA engine works on another. Where it can, the stream waits for bytes that come at once
// without a host function (arrival_gates.h), and those of a copy to the client that is not too
// large follow it without one (region_puts.h). A stream in capture gets only the copy; the graph's
// executables add the transfers (graph_copies.h). For mirrored memory (mirrors.h) no bytes are
// moved, because the shadow already has the stream's bytes. Threads: all functions on the executor
// thread, carry_out() on any. The host functions run on the driver's threads. Blocking:
// carry_out(); the host functions block the stream during the transfers. Errors: those of the
// driver. A transfer fails if the Link breaks, or if the client withdraws its memory during the
// copy; the bytes then stay unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/arrivals.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/host_memory/arrival_gates.h"
#include "server/executor/host_memory/host_memory.h"
#include "server/executor/host_memory/region_puts.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class ShadowCopies {
 public:
  // All outlive this object, and the streams' work.
  ShadowCopies(const api::DriverTable& driver, transport::Link& link, Answers& answers,
               const HostMemory& host_memory, std::shared_ptr<RegionPuts> puts,
               std::shared_ptr<ArrivalGates> gates, transport::Arrivals& arrivals);

  // How many copies can wait at gates, in streams that can.
  size_t gates() const { return gates_->size(); }

  // From now on a stream passes a copy to the client only when the client has acknowledged the
  // bytes, because another worker is about to learn how far `stream` is, or an event if it is null.
  // What earlier copies have sent by RegionPuts comes before the stream's next work; an
  // event waits for it a second at most. Blocks for a round trip the first time.
  void begin_acknowledging(const SessionStream* stream);

  // A range of client memory that lies in one shadow.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };

  // Whether a side is a shadow whose bytes have to be moved. Such a copy must go through copy().
  bool concerns(const wire::CopyBody& body) const;
  // Queues a contiguous copy whose source, destination or both are shadows. The driver must know
  // other memory.
  CUresult copy(const SessionStream& stream, const wire::CopyBody& body);
  // The stream's next work begins when the bytes are here that the client writes with this
  // immediate.
  CUresult await_write(const SessionStream& stream, uint32_t immediate, uint64_t bytes);
  // The same for all that it writes for a copy that is refused. Does nothing for a source that is
  // no shadow.
  void await_writes(const SessionStream& stream, const wire::CopyBody& body);

  // Pieces that can be moved any number of times, but only once at a time.
  class Transfer;
  // Returns null if a piece lies in no shadow.
  std::shared_ptr<Transfer> prepare(bool to_client, const std::vector<Piece>& pieces);
  // Moves the pieces. Blocks until they have arrived. Any thread.
  static void carry_out(Transfer& transfer);

  // For shapes: fetches pieces from the client, or sends them to it, in one host function of the
  // stream. Does nothing in a capture.
  CUresult pull(const SessionStream& stream, const std::vector<Piece>& pieces);
  CUresult push(const SessionStream& stream, const std::vector<Piece>& pieces);

 private:
  struct Step;
  struct Steps;

  bool is_shadow(uint64_t address, uint64_t bytes) const;
  bool fetches(const wire::CopyBody& body) const;
  bool sends_back(const wire::CopyBody& body) const;
  static void CUDA_CB run(void* argument);
  CUresult queue(const SessionStream& stream, Step step);
  CUresult await(const SessionStream& stream, const std::shared_ptr<Transfer>& in, size_t index,
                 size_t start_to);
  // For a transfer whose items are all under way: the stream waits for all of them.
  CUresult await_all(const SessionStream& stream, const std::shared_ptr<Transfer>& in);
  void start_all(const SessionStream& stream, Transfer& in, uint32_t immediate);

  const api::DriverTable& driver_;
  transport::Link& link_;
  Answers& answers_;
  const HostMemory& host_memory_;
  const std::shared_ptr<RegionPuts> puts_;
  const std::shared_ptr<ArrivalGates> gates_;
  transport::Arrivals& arrivals_;
  bool has_settled_ = false;
};

}  // namespace rcuda::server
