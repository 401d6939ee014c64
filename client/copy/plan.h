// Decides how a copy is made, for all shapes.
//
// Both sides are located first (locate.h). The first case that applies decides:
// - The sides are device memory of two servers: their workers copy (peer.h). In a capture, the copy
//   becomes a node of the graph (peer_node.h).
// - A side is pageable, and the stream captures: page-locked memory replaces it in the graph
//   (stand_in.h).
// - No side is device memory: the worker copies if both sides are page-locked and it can copy this
//   shape (`worker_copies_host`). Otherwise this process copies, after it has waited for the
//   stream.
// - A side is pageable: its bytes travel in the command, in the reply or through the staging
//   region.
// - Otherwise the worker can address both sides: one command.
//
// Threads: any. Blocking: prepare_copy() waits for everything that must end before the copy.
#pragma once

#include <cstdint>
#include <optional>

#include <cuda.h>

#include "client/copy/locate.h"

namespace rcuda::client {

enum class CopyWay {
  kBetweenServers,
  kCapturePageable,
  kOnHost,
  kInWorker,
  kFromPageable,
  kToPageable
};

struct CopyPlan {
  CopyWay way = CopyWay::kInWorker;
  std::optional<CopyStream> stream;  // where the worker copies; not set between servers
  bool captures = false;             // the stream captures; not set between servers
  uint32_t mirrored = 0;             // flags of wire::CopyBody: which sides are mirrored
  bool waits = false;                // the caller waits until the copy has ended
};

// Plans a copy, and waits for everything that must end before it. `worker_copies_host`: for this
// shape, a worker can also copy from page-locked memory to page-locked memory.
CUresult prepare_copy(const Location& destination, const Location& source, CUstream stream,
                      bool synchronous, bool worker_copies_host, CopyPlan* plan);

}  // namespace rcuda::client
