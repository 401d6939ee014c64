// The NCCL of the program's own machine, for sessions whose servers have none (RCUDA_NCCL).
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

// Opens the libnccl.so.2 that the program would have without rcuda's: in the folders that loaded
// libraries name (RPATH, a Python environment's packages), in LD_LIBRARY_PATH and in those of the
// system. It is opened by its path and in a scope of its own, because rcuda's has the same name. An
// error says that no library was found. It is never closed.
Result<LocalLibrary> open_local_library();

}  // namespace rcuda::client::nccl
