// JitOptions: options of cuModuleLoadDataEx, cuLibraryLoadData, cuLinkCreate and cuLinkAddData in
// the driver's form. The driver keeps pointers into the JitOptions of a cuLinkCreate until
// cuLinkDestroy.
// Executor thread only. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <cuda.h>

#include "common/wire/protocol.h"

namespace rcuda::server {

class JitOptions {
 public:
  // `info_bytes`, `error_bytes`: sizes of the application's log buffers; 0 means that it has none.
  JitOptions(size_t info_bytes, size_t error_bytes);
  // The driver has the addresses of this object's logs.
  JitOptions(const JitOptions&) = delete;
  JitOptions& operator=(const JitOptions&) = delete;

  // Ignores unknown options, and options whose value is a pointer, because the pointer is an
  // address of the client. The value of CU_JIT_WALL_TIME is an output: the driver writes it.
  void add(CUjit_option option, uint64_t value);
  unsigned count() const { return static_cast<unsigned>(names_.size()); }
  CUjit_option* names() { return names_.data(); }
  void** values() { return values_.data(); }

  // Appends wire::JitLogs and the texts of both logs as they are now.
  void write_logs(std::vector<std::byte>* bytes) const;

 private:
  struct Log {
    std::vector<char> text;
    size_t size_index = 0;  // in values_; the driver replaces the capacity by the size of the log
  };

  Log make_log(size_t bytes, CUjit_option buffer, CUjit_option size);
  wire::JitLog described(const Log& log) const;

  std::vector<CUjit_option> names_;
  std::vector<void*> values_;
  std::optional<size_t> wall_time_;  // index of CU_JIT_WALL_TIME in values_
  Log info_, error_;
};

}  // namespace rcuda::server
