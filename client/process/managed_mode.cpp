#include "client/process/managed_mode.h"

#include <cstdlib>
#include <string>

namespace rcuda::client {

Result<ManagedMode> managed_mode() {
  const char* const text = ::secure_getenv("RCUDA_MANAGED");
  const std::string mode = text ? text : "";
  if (mode.empty() || mode == "moved") return ManagedMode::kDefault;  // which was no default once
  if (mode == "in_place") return ManagedMode::kInPlace;
  if (mode == "tracked") return ManagedMode::kTracked;
  if (mode == "compared") return ManagedMode::kCompared;
  return Status(Code::kInvalidArgument,
                "RCUDA_MANAGED=" + mode + " is not usable: it takes in_place, tracked or compared");
}

bool is_managed_mode(ManagedMode mode) {
  const Result<ManagedMode> asked = managed_mode();
  return asked && *asked == mode;
}

}  // namespace rcuda::client
