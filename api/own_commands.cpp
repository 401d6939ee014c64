// This function has a file of its own, because a test of different builds replaces it.
#include "api/command_hashes.h"

namespace rcuda::api {

std::span<const uint32_t> command_hashes() { return {internal::kHashes, internal::kHashCount}; }

}  // namespace rcuda::api
