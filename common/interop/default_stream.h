// The default stream that functions without a stream parameter use on this thread.
//
// A program compiled for per-thread default streams calls functions such as cuMemcpy_ptds. These
// functions are generated wrappers. They open a PerThreadDefaultStreamScope and call the plain
// function, which asks per_thread_default_stream() for its stream. Functions with a stream
// parameter do not use this: their _ptsz wrappers pass CU_STREAM_PER_THREAD for stream 0.
// Thread-local, so any thread may call; nothing blocks.
#pragma once

namespace rcuda::interop {

namespace internal {
inline thread_local bool per_thread_default_stream = false;
}

inline bool per_thread_default_stream() { return internal::per_thread_default_stream; }

class PerThreadDefaultStreamScope {
 public:
  PerThreadDefaultStreamScope() : previous_(internal::per_thread_default_stream) {
    internal::per_thread_default_stream = true;
  }
  ~PerThreadDefaultStreamScope() { internal::per_thread_default_stream = previous_; }
  PerThreadDefaultStreamScope(const PerThreadDefaultStreamScope&) = delete;
  PerThreadDefaultStreamScope& operator=(const PerThreadDefaultStreamScope&) = delete;

 private:
  bool previous_;
};

}  // namespace rcuda::interop
