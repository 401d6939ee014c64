// The server's NCCL: finds the library and loads its functions.
//
// A process loads NCCL once and never unloads it, because NCCL's threads run until the process
// ends. Threads: any. Blocking: load_nccl() while the loader reads the library (some 100 ms).
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/nccl/functions.h"
#include "common/nccl/nccl_api.h"

namespace rcuda::server {

struct NcclLibrary {
  nccl::Functions functions;
  int version = 0;
  std::string path;
};

// `choice`: "auto" (the loader's path), "none" or a path. Later calls return the result of the
// first call. An error says why the server has no library, and names the setting.
Result<const NcclLibrary*> load_nccl(const std::string& choice);

}  // namespace rcuda::server
