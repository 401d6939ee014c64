// Connections: the queues that a device's streams share (stream.h). The streams lock `mutex`.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

class Connections {
 public:
  explicit Connections(size_t count) : last_(count) {}
  std::mutex mutex;  // taken before any Stream::mutex_; guards the members below
  // Returns a connection without unfinished work. If all have unfinished work, returns the next in
  // turn.
  size_t choose();
  // The Point that is reached when the last submission to the connection has finished.
  Point& last(size_t connection) { return last_[connection]; }

 private:
  std::vector<Point> last_;
  size_t next_ = 0;
};

}  // namespace softgpu::driver
