// Connections: the queues that a device's streams share (stream.h). The streams do the locking.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "softgpu/driver/timeline.h"

namespace softgpu::driver {

class Connections {
 public:
  explicit Connections(size_t count) : last_(count) {}
  std::mutex mutex;  // before any Stream::mutex_; guards what follows
  // One that has run empty, else the next in turn.
  size_t choose();
  // The end of what was submitted to it last.
  Point& last(size_t connection) { return last_[connection]; }

 private:
  std::vector<Point> last_;
  size_t next_ = 0;
};

}  // namespace softgpu::driver
