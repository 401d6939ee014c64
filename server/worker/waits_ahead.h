// WaitsAhead: finds waits for events in the command ring before the executor reaches them.
//
// A program often queues more work between an event's record and its wait for the event: a step of
// OpenMM queues eleven kernels there. With a local driver, that work is already queued when the
// program begins to wait. Here it may still be in the ring, and each launch takes the executor some
// microseconds. If the executor executed the wait only after all of these launches, the ring would
// be empty for a round trip after the wait.
//
// So a wait whose record has been executed overtakes commands that only queue work (the trait
// `overtaken`), and other waits. Below, a wait is any WatchEvent: a wait, a query (PyTorch queries
// events while hundreds of launches are in the ring), or a request to report the end of a record. A
// MirrorNews directly before a wait overtakes together with it. A wait overtakes no other command,
// and no MirrorNews longer than kMostBytes.
//
// A later call returns the errors of overtaken commands. In a traced session every wait is executed
// in the order of the ring, because the trace shows commands in order.
//
// Executor thread only. Nothing blocks. An invalid frame ends the search; RingReader::try_next()
// reports it.
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
  using Payload = std::vector<std::byte>;  // the bytes of a frame

  explicit WaitsAhead(wire::RingReader& ring) : ring_(ring) {}

  // Returns the commands that the caller must execute now: a wait, preceded by its MirrorNews if
  // there is one. Returns none if no wait is due. To be called after each command. `commands`: the
  // number of commands of the session that have been executed.
  std::vector<Payload> next(uint64_t commands);
  // Whether the frame that try_next() has just returned was executed ahead. To be called once for
  // each frame.
  bool was_ahead();

 private:
  struct Frame {
    uint64_t number = 0;  // the frame's number in the ring
    Payload payload;
  };
  struct Wait {
    uint64_t record = 0;        // WatchEventBody::record
    std::vector<Frame> frames;  // the MirrorNews, if there is one, and the wait
  };
  static constexpr size_t kMostBytes = 1024;
  static constexpr size_t kMostWaits = 8;  // the limit of found_
  static constexpr int kMostLooks = 64;    // the frames that one call of search() examines

  void search();
  bool view(const wire::RingReader::Ahead& frame);

  wire::RingReader& ring_;
  std::array<std::byte, kMostBytes> bytes_{};  // the first bytes of the examined frame
  Frame request_;                              // the last examined frame, if it was a MirrorNews
  std::vector<Wait> found_;                    // waits that are not executed yet
  std::deque<uint64_t> ahead_;  // frames that were executed ahead and not yet taken, in order
  uint64_t barrier_ = 0;        // the search goes on when this frame has been taken
};

}  // namespace rcuda::server
