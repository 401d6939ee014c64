// ShadowCopies: copies whose host side is client memory that this worker only has a shadow of.
//
// The bytes move over the Link when the stream gets there. Host functions in the stream start and
// await the transfers, in chunks, so that the network carries one chunk while the DMA engine works
// on another. In a stream that captures they only leave the copy: the graph's executables bring the
// transfers (graph_copies.h). Functions are called on the executor thread; the host functions run
// on the driver's threads and hold the stream while the network is busy. A transfer that fails
// leaves the bytes as they were: the Link is broken then, or the client took its memory away in
// mid-copy. Nothing is moved for mirrored memory (mirrors.h): the shadow is what the stream has
// made of it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

class Executor;
struct StreamRef;

class ShadowCopies {
 public:
  explicit ShadowCopies(Executor& executor);
  ~ShadowCopies();

  // A range of client memory that lies in one shadow.
  struct Piece {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };

  // Whether either side is a shadow whose bytes have to be moved, so that copy() must be used.
  bool concerns(const wire::CopyBody& body) const;
  // A contiguous copy between memory the driver knows and shadows, either way or both.
  CUresult copy(const StreamRef& stream, const wire::CopyBody& body);

  // Pieces on their way, to be carried out any number of times, one after the other.
  class Transfer;
  // Null when a piece lies in no shadow.
  std::shared_ptr<Transfer> prepare(bool to_client, const std::vector<Piece>& pieces);
  // Blocks until they have arrived. Any thread.
  static void carry_out(Transfer& transfer);

  // For shapes: brings pieces in, or sends them out, as one step of the stream.
  CUresult pull(const StreamRef& stream, const std::vector<Piece>& pieces);
  CUresult push(const StreamRef& stream, const std::vector<Piece>& pieces);

 private:
  struct Step;
  struct Steps;

  bool is_shadow(uint64_t address, uint64_t bytes) const;
  bool fetches(const wire::CopyBody& body) const;
  bool sends_back(const wire::CopyBody& body) const;
  static void CUDA_CB run(void* argument);
  CUresult queue(const StreamRef& stream, Step step);

  Executor& executor_;
};

}  // namespace rcuda::server
