// WaitsAhead: finds waits for events in the command ring before the executor reaches them.
//
// A program often queues more work between an event's record and its wait for the event: a step of
// OpenMM queues eleven kernels there. With a local driver that work is queued when the wait begins.
// Here it may still be in the ring, and each launch takes the executor some microseconds. Carried
// out in its turn, the wait would end after all of them, and the ring would then be empty for a
// round trip.
//
// So a wait overtakes commands that only queue work (the trait `overtaken`), and other waits, if
// its record has been executed. The news of mirrored memory that the client requests directly
// before the wait (MirrorNews) go with it; with a request of another kind, or a frame longer than
// kMostBytes, it keeps its turn. Errors of commands that were overtaken are told by a later call. A
// traced session has no such waits, because the trace shows commands in order.
//
// Executor thread only. Nothing blocks. An invalid frame ends the search; try_next() reports it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::server {

class WaitsAhead {
 public:
  using Payload = std::vector<std::byte>;  // of a frame

  explicit WaitsAhead(wire::RingReader& ring) : ring_(ring) {}

  // The commands of one wait that is to be carried out now: the request that belongs to it, and the
  // wait. Empty: none. To be called after each command. `commands`: how many commands of the
  // session have been executed.
  std::vector<Payload> next(uint64_t commands);
  // Whether the frame that try_next() has just returned was carried out ahead. To be asked once for
  // each frame.
  bool was_ahead();

 private:
  struct Frame {
    uint64_t number = 0;  // in the ring
    Payload payload;
  };
  struct Wait {
    uint64_t record = 0;        // WatchEventBody::record
    std::vector<Frame> frames;  // the request, if there is one, and the wait
  };
  static constexpr size_t kMostBytes = 1024;
  static constexpr size_t kMostWaits = 8;  // that are found and whose record is not yet executed
  static constexpr int kMostLooks = 64;    // in one call

  void search();
  bool view(const wire::RingReader::Ahead& frame);

  wire::RingReader& ring_;
  std::array<std::byte, kMostBytes> bytes_{};  // the first ones of the frame in view
  Frame request_;                              // the last frame in view, if it was one
  std::vector<Wait> found_;
  std::deque<uint64_t> ahead_;  // frames that were carried out ahead and not yet taken, in order
  uint64_t barrier_ = 0;        // the search goes on when this frame has been taken
};

}  // namespace rcuda::server
