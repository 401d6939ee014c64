// EventSink: writes events into the client's event ring. Each function sends the event of its name
// (common/wire/protocol.h).
//
// Threads: any (the executor thread, the output reader, the driver's callback threads). Blocking:
// notice() and try_output() never block. Each other call blocks while the ring is full, until the
// client takes an event or the Link breaks. Errors: those of the Link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <cuda.h>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/link.h"
#include "common/wire/protocol.h"
#include "common/wire/ring.h"

namespace rcuda::server {

class EventSink {
 public:
  explicit EventSink(transport::Link& link) : ring_(link, wire::kEventRingLayout) {}

  Status ready(const transport::Region& staging, const transport::Region& marks, size_t gates);
  Status host_callback(uint64_t callback, uint32_t slot, uint64_t sequence, CUresult status,
                       uint64_t loan);
  Status released(uint64_t callback);
  // Sends a text of any length, in events of bounded size.
  Status output(bool is_stderr, std::string_view text);
  // Sends a line. Returns kTimeout and sends nothing if it would have to wait for the event ring.
  Status try_output(bool is_stderr, std::string_view line);
  // Sends a line about the session. `ends`: as in NoticeEvent. Returns kTimeout as try_output()
  // does.
  Status notice(bool ends, std::string_view text);
  Status trace(std::span<const wire::TraceEvent> events);

 private:
  Status append(std::span<const std::byte> head, std::span<const std::byte> body);
  Status try_append(std::span<const std::byte> head, std::span<const std::byte> body);

  Mutex mutex_;
  wire::RingWriter ring_ RCUDA_GUARDED_BY(mutex_);
};

}  // namespace rcuda::server
