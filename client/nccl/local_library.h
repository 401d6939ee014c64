// The NCCL of the program's own machine, for programs whose servers have none (RCUDA_NCCL).
//
// Threads: any. Blocking: while the loader reads the library.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/nccl/functions.h"

namespace rcuda::client::nccl {

struct LocalLibrary {
  rcuda::nccl::Functions functions;
  std::string path;
};

// Opens the libnccl.so.2 that the program would have without rcuda. Searches the folders that
// loaded libraries name (RPATH), the packages of a Python environment, LD_LIBRARY_PATH and the
// system's folders. Opens the library by its path, with RTLD_LOCAL and RTLD_DEEPBIND, because
// rcuda's library has the same name and symbols. It is never closed. Errors: kNotFound.
Result<LocalLibrary> open_local_library();

}  // namespace rcuda::client::nccl
