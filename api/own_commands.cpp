// Alone in its file: a test of other builds has another definition.
#include "api/command_hashes.h"

namespace rcuda::api {

std::span<const uint32_t> command_hashes() { return {internal::kHashes, internal::kHashCount}; }

}  // namespace rcuda::api
