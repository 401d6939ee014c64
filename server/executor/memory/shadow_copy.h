// ShadowCopies: copies whose host side is client memory of which this worker has a shadow only.
//
// The bytes move over the Link when the stream reaches the copy. Host functions in the stream start
// the transfers and wait for them, in chunks, so that the network carries one chunk while the DMA
// engine works on another. A stream in capture gets the copy alone; the transfers come with the
// graph's executables (graph_copies.h). Nothing is moved for mirrored memory (mirrors.h), because
// the shadow has what the stream made of it.
// Threads: all functions on the executor thread, carry_out() on any. The host functions run on the
// driver's threads. Blocking: carry_out(); the host functions hold the stream while the network is
// busy. Errors: those of the driver. A transfer that fails leaves the bytes as they were: the Link
// is broken, or the client took its memory away during the copy.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "api/driver_table.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "server/executor/answers/answers.h"
#include "server/executor/memory/host_memory.h"
#include "server/executor/objects/objects.h"

namespace rcuda::server {

class ShadowCopies {
 public:
  // All outlive this object, and the streams' work.
  ShadowCopies(const api::DriverTable& driver, transport::Link& link, Answers& answers,
               const HostMemory& host_memory)
      : driver_(driver), link_(link), answers_(answers), host_memory_(host_memory) {}

  // A range of client memory that lies in one shadow.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };

  // Whether a side is a shadow whose bytes have to be moved. Such a copy must go through copy().
  bool concerns(const wire::CopyBody& body) const;
  // A contiguous copy between memory the driver knows and shadows, either way or both.
  CUresult copy(const SessionStream& stream, const wire::CopyBody& body);

  // Pieces to be moved, any number of times, one time after the other.
  class Transfer;
  // Returns null if a piece lies in no shadow.
  std::shared_ptr<Transfer> prepare(bool to_client, const std::vector<Piece>& pieces);
  // Blocks until the pieces have arrived. Any thread.
  static void carry_out(Transfer& transfer);

  // For shapes: brings pieces in, or sends them out, as one step of the stream.
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

  const api::DriverTable& driver_;
  transport::Link& link_;
  Answers& answers_;
  const HostMemory& host_memory_;
};

}  // namespace rcuda::server
