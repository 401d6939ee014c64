// ShadowCopies: copies whose host side is client memory that this worker only has a shadow of.
//
// The bytes move over the Link when the stream gets there. Host functions in the stream start and
// await the transfers, in chunks, so that the network carries one chunk while the DMA engine works
// on another; captured into a graph, they do the same at every launch. Functions are called on the
// executor thread; the host functions run on the driver's threads and hold the stream while the
// network is busy. A transfer that fails leaves the bytes as they were: the Link is broken then, or
// the client took its memory away in mid-copy.
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

  // Whether either side is (partly) a shadow, so that copy() must be used.
  bool concerns(uint64_t destination, uint64_t source, uint64_t bytes) const;
  // A contiguous copy between memory the driver knows and shadows, either way or both.
  CUresult copy(const StreamRef& stream, uint64_t destination, uint64_t source, uint64_t bytes);

  // For shapes: brings pieces in, or sends them out, as one step of the stream.
  CUresult pull(const StreamRef& stream, const std::vector<Piece>& pieces);
  CUresult push(const StreamRef& stream, const std::vector<Piece>& pieces);

 private:
  class Transfer;
  struct Step;

  static void CUDA_CB run(void* argument);
  CUresult queue(const StreamRef& stream, Step step);
  std::shared_ptr<Transfer> make(bool to_client, const std::vector<Piece>& pieces);

  Executor& executor_;
  std::vector<std::unique_ptr<Step>> kept_;  // of graphs
};

}  // namespace rcuda::server
