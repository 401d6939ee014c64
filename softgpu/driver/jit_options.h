// JitLog: the options of cuModuleLoadDataEx, cuLibraryLoadData or cuLinkCreate that have an effect
// here: the log buffers, and the wall time, which is always 0. Lives as long as the call, or as the
// CUlinkState. The caller owns the buffers. One thread at a time.
#pragma once

#include <cstddef>
#include <string>

#include <cuda.h>

namespace softgpu::driver {

class JitLog {
 public:
  JitLog() = default;
  // CUDA_ERROR_INVALID_VALUE for unknown options and for options without their values.
  static CUresult read(unsigned count, CUjit_option* options, void** values, JitLog* log);

  // Appends a line to the error buffer, as much as fits.
  void error(const std::string& line);
  // Reports how much of each buffer was filled, by overwriting the option that gave its size.
  void finish();

 private:
  struct Buffer {
    char* text = nullptr;
    size_t capacity = 0, used = 0;
    void** size_value = nullptr;
  };
  Buffer info_, error_;
  void** wall_time_ = nullptr;
};

}  // namespace softgpu::driver
